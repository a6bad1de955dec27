/* Names that are looked up at once take a few threads, however many they are. This program has a getaddrinfo of its own in
 * front of the C library's: it answers when it is told to. */
#define _GNU_SOURCE
#include "cm.h"
#include "threads.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>

enum { ADDRINFO_RESOLVED = 16, IDS = 200, MOST_THREADS = 4 };

typedef int resolve(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int begun, open_to_all;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	int (*system)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");

	NEED(system);
	pthread_mutex_lock(&lock);
	begun++;
	pthread_cond_broadcast(&changed);
	while (!open_to_all)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return system(node, service, hints, result);
}

int main(void)
{
	resolve *rdma_resolve_addrinfo = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	struct rdma_event_channel *channel;
	struct rdma_cm_id *ids[IDS];

	raise_lo();
	channel = rdma_create_event_channel();
	NEED(rdma_resolve_addrinfo && channel);
	for (int i = 0; i < IDS; i++)
		NEED(!rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
	int before = threads();

	for (int i = 0; i < IDS; i++)
		NEED(!rdma_resolve_addrinfo(ids[i], "127.0.0.1", "7290", NULL));
	CHECK(threads() <= before + MOST_THREADS);
	/* A name that takes long does not keep the next ones waiting. */
	pthread_mutex_lock(&lock);
	while (begun < MOST_THREADS)
		pthread_cond_wait(&changed, &lock);
	CHECK(begun == MOST_THREADS);
	pthread_mutex_unlock(&lock);
	/* Nobody waits for the name of an id that ends. */
	CHECK(!rdma_destroy_id(ids[IDS - 1]));
	pthread_mutex_lock(&lock);
	open_to_all = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < IDS - 1; i++) {
		struct rdma_cm_event *event = next_event(channel, (enum rdma_cm_event_type)ADDRINFO_RESOLVED);

		CHECK(!rdma_ack_cm_event(event));
	}
	CHECK(begun == IDS - 1);
	for (int i = 0; i < IDS - 1; i++)
		CHECK(!rdma_destroy_id(ids[i]));
	rdma_destroy_event_channel(channel);
	return finish();
}
