/* Programs that are right only with luck, for `ferroce run --explore`: argv[1] names the race, and argv[2], if there, asks for the
 * same program without it. Exit status 0: all went well; 3: the race showed. */
#include "pair.h"

#include <pthread.h>
#include <stdbool.h>

enum { ROUNDS = 400, LENGTH = 64 };

static struct end a, b;
static bool faulty;

static int lost(const char *what)
{
	fprintf(stderr, "the race showed: %s\n", what);
	_exit(3);
}

/* Whether an event comes within four seconds, and if so takes it. */
static bool has_event(struct end *end)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context_of_cq;

	if (poll(&fd, 1, 4000) != 1)
		return false;
	NEED(!ibv_get_cq_event(end->channel, &cq, &context_of_cq));
	ibv_ack_cq_events(cq, 1);
	return true;
}

static bool has_completion(struct end *end)
{
	struct ibv_wc wc;
	int got = ibv_poll_cq(end->cq, 1, &wc);

	NEED(got >= 0);
	return got == 1;
}

/* Sends a message in each round, as soon as the receiver asks for it. */
static volatile int asked;

static void *sender(void *arg)
{
	(void)arg;
	for (int round = 1; round <= ROUNDS; round++) {
		while (asked < round)
			sched_yield();
		CHECK(post(&a, IBV_WR_SEND, round, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
		next_wc(&a);
	}
	return NULL;
}

/* Polls, arms and waits, without a poll between. */
static void receive_missed(void)
{
	asked++;
	if (has_completion(&b))
		return;
	NEED(!ibv_req_notify_cq(b.cq, 0));
	if (!faulty && has_completion(&b))
		return;
	do {
		if (!has_event(&b))
			lost("a completion came between poll and arm");
	} while (!has_completion(&b));
}

static void missed_event(void)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, sender, NULL));
	for (int round = 1; round <= ROUNDS; round++) {
		post_receive(&b, round, 0, LENGTH);
		receive_missed();
	}
	NEED(!pthread_join(thread, NULL));
}

/* Arms for solicited events, polls for a while and then sleeps; the message is not solicited. */
static void solicited_event(void)
{
	for (int round = 1; round <= ROUNDS; round++) {
		bool is_there = false;

		post_receive(&b, round, 0, LENGTH);
		NEED(!ibv_req_notify_cq(b.cq, 1));
		CHECK(post(&a, IBV_WR_SEND, round, 0, LENGTH, &b, 0,
			   IBV_SEND_SIGNALED | (faulty ? 0 : IBV_SEND_SOLICITED)) == 0);
		for (int polls = 0; polls < 10 && !is_there; polls++)
			is_there = has_completion(&b);
		while (!is_there) {
			if (!has_event(&b))
				lost("no event of a message that is not solicited");
			is_there = has_completion(&b);
		}
		next_wc(&a);
	}
}

/* Writes data by one queue pair, and the flag that it is there by another one. */
static void order(void)
{
	struct end c, d;

	make_pair(&c, &d);
	for (int round = 1; round <= ROUNDS; round++) {
		volatile char *data = b.memory, *flag = d.memory;

		a.memory[0] = c.memory[0] = round % 100 + 1;
		CHECK(post(&a, IBV_WR_RDMA_WRITE, round, 0, 1, &b, 0, IBV_SEND_SIGNALED) == 0);
		if (!faulty)
			next_wc(&a);
		CHECK(post(&c, IBV_WR_RDMA_WRITE, round, 0, 1, &d, 0, IBV_SEND_SIGNALED) == 0);
		alarm(20);
		while (*flag != a.memory[0])
			has_completion(&d);
		if (*data != a.memory[0])
			lost("the flag came before the data");
		if (faulty)
			next_wc(&a);
		next_wc(&c);
	}
	free_end(&c);
	free_end(&d);
}

/* Writes to the buffer of a send before its completion was polled. */
static void reuse(void)
{
	for (int round = 1; round <= ROUNDS; round++) {
		post_receive(&b, round, 0, LENGTH);
		memset(a.memory, round % 100 + 1, LENGTH);
		CHECK(post(&a, IBV_WR_SEND, round, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
		if (!faulty)
			next_wc(&a);
		memset(a.memory, 0, LENGTH);
		next_wc(&b);
		if (b.memory[0] != round % 100 + 1)
			lost("the message has what was written later");
		if (faulty)
			next_wc(&a);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} RACES[] = {
	{ "missed-event", missed_event },
	{ "solicited-event", solicited_event },
	{ "order", order },
	{ "reuse", reuse },
};

int main(int argc, char **argv)
{
	faulty = argc == 2;
	open_pair(&a, &b);
	for (size_t i = 0; i < sizeof(RACES) / sizeof(RACES[0]); i++)
		if (argc > 1 && !strcmp(argv[1], RACES[i].name))
			RACES[i].run();
	return close_pair(&a, &b);
}
