/*
 * stress: 64 queue pairs in 4 processes, driven by 2 or more threads in each, for a while.
 *
 *   stress [-d DEV] SECONDS [THREADS [SEED [SPOIL]]]
 *
 * 40 RC, 16 UC and 8 UD queue pairs, a third of them on shared receive queues, connected across and within the
 * processes, over the device's first two GIDs, at every path MTU. Each sends operations that follow from the seed, its
 * number and the operation's alone, so whoever looks at a message knows what it must be, to the octet:
 *
 *   RC  SEND, WRITE (each with and without immediate), READ of fixed data and of what was just written, FETCH_ADD and
 *       CMP_SWAP on words of its own (each answer known before) and on words that all queue pairs and a CPU add to
 *       (the sum known in the end); 0 to 16384 octets, inline, fenced, in lists, over two SGEs, half of them unsignaled
 *   UC  SEND and WRITE with immediate; what arrives must be whole, and arrive once
 *   UD  SEND to any of the UD queue pairs; the same
 *
 * THREADS in each process: odd ones sleep in ibv_get_cq_event, even ones poll. Any thread posts to any queue pair. Of
 * a process's four completion queues two are for polling and two for events; of each kind one is polled by a thread at
 * a time, where the order of completions is checked, and one by several at once.
 *
 * Every signaled work request completes exactly once, every message of a reliable connection arrives exactly once and
 * in order, every receive that is left is flushed once. Status 1 and a sentence if not.
 */
#include "pair.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "stress_ends.h"

/* ---- the threads ---- */

static void completion(const struct ibv_wc *wc, int strict)
{
	struct end *e = NULL;
	if (wc->wr_id == WAKE) return;
	for (int i = 0; i < MINE; i++) if (end[i].qp->qp_num == wc->qp_num) e = &end[i];
	if (!e || (!(wc->wr_id & SRQ_BIT) && (int)(wc->wr_id >> 40 & 0xffff) != e->id)) lost("a completion of %#llx for queue pair %#x",
		(unsigned long long)wc->wr_id, wc->qp_num);
	pthread_mutex_lock(&e->lock);
	int receive = !!(wc->wr_id & RECV_BIT);
	if (wc->status && !(receive && e->flushing && wc->status == IBV_WC_WR_FLUSH_ERR)) {
		uint64_t n = wc->wr_id & 0xffffffffffull;
		lost("%s: %s %llu: %s", name(e), receive ? "receive" : kind_name[op_of(e->id, n).kind], (unsigned long long)n, ibv_wc_status_str(wc->status));
	}
	if (receive) receive_done(e, wc, strict);
	else send_done(e, wc->wr_id & 0xffffffffffull, strict);
	drive(e);
	pthread_mutex_unlock(&e->lock);
}

/* Is it time to spoil `what`? Once, when there has been some of everything. */
static int spoils(const char *what)
{
	uint64_t not_yet = 0;
	if (me_process || all->spoiled || strcmp(spoil, what) || end[0].retired < 32) return 0;
	return atomic_compare_exchange_strong(&all->spoiled, &not_yet, now());
}

/* Polls once; how many completions there were. */
static int reap_some(int which, int wait)
{
	struct ibv_wc wc[8];
	int strict = which % 2 == 0;
	if (strict && (wait ? pthread_mutex_lock(&in_order[which]) : pthread_mutex_trylock(&in_order[which]))) return 0;
	int n = ibv_poll_cq(cqs[which], 1 + now() / 64 % 8, wc);
	if (n < 0) lost("ibv_poll_cq: %d", n);
	/* of datagrams in a shared receive queue nobody could say which came first */
	if (strict && n > 1 && wc[0].qp_num == wc[1].qp_num && !((wc[0].wr_id ^ wc[1].wr_id) & RECV_BIT) &&
	    !(wc[0].wr_id & SRQ_BIT) && spoils("order")) {
		struct ibv_wc first = wc[0];
		wc[0] = wc[1], wc[1] = first;
	}
	for (int i = 0; i < n; i++) {
		if (wc[i].wr_id & RECV_BIT && wc[i].opcode == IBV_WC_RECV && wc[i].byte_len > 16 + GRH && !(wc[i].wr_id & SRQ_BIT) && spoils("octet"))
			for (int k = 0; k < MINE; k++) if (end[k].qp->qp_num == wc[i].qp_num)
				end[k].recvs[(wc[i].wr_id & 0xffffffffff) % RECVS * (MAXLEN + GRH) + wc[i].byte_len - 1] ^= 1;
		if (!(wc[i].wr_id & SRQ_BIT) && spoils("lose")) continue;
		completion(&wc[i], strict);
		if (spoils("twice")) completion(&wc[i], strict);
	}
	if (strict) pthread_mutex_unlock(&in_order[which]);
	return n;
}

static void *poller(void *arg)
{
	uint64_t random = mix(seed ^ me_process << 8 ^ (uintptr_t)arg);
	while (!quit) {
		int busy = 0;
		random = mix(random);
		for (int i = 0; i < MINE; i++) {
			struct end *e = &end[(i + random) % MINE];
			if (pthread_mutex_trylock(&e->lock)) continue;
			busy += drive(e);
			pthread_mutex_unlock(&e->lock);
		}
		busy += reap_some(0, 0) + reap_some(1, 0);
		if (random >> 32 & 1) busy += reap_some(3, 0);
		if ((random >> 40) % 16 == 0 && !time_is_up()) {
			/* this process's CPU adds too */
			all->added[me_process][random >> 50 & 7] += 1;
			words[random >> 50 & 7] += 1 + spoils("add");
		}
		if (!busy) sched_yield();
	}
	return NULL;
}

static void *waiter(void *arg)
{
	unsigned unacked[CQS] = { 0 };
	(void)arg;
	while (!quit) {
		struct ibv_cq *which;
		void *user;
		if (ibv_get_cq_event(channel, &which, &user)) lost("ibv_get_cq_event: %s", strerror(errno));
		int i = which == cqs[2] ? 2 : 3;
		if (which != cqs[i]) lost("an event of no completion queue");
		if (++unacked[i] == 7) { ibv_ack_cq_events(which, 7); unacked[i] = 0; }
		if (!(i == 2 && spoils("event")) && ibv_req_notify_cq(which, 0)) lost("ibv_req_notify_cq");
		while (reap_some(i, 1) > 0) ;
	}
	for (int i = 2; i < CQS; i++) if (unacked[i]) ibv_ack_cq_events(cqs[i], unacked[i]);
	return NULL;
}

/* ---- setting up, and taking down ---- */

static void barrier(int which)
{
	all->at_barrier[which]++;
	for (int i = 0; all->at_barrier[which] < PROCS; i++) {
		if (i == PATIENCE * 1000) lost("waited %d s for the other processes at step %d", PATIENCE, which);
		usleep(1000);
	}
}

static uint8_t *carve(uint8_t **from, size_t octets)
{
	uint8_t *at = *from;
	*from += (octets + 4095) & ~4095ul;
	return at;
}

static void create(struct end *e, int id, int index)
{
	enum service service = service_of(id);
	*e = (struct end){ .id = id, .peer = peer_of(id), .process = me_process, .service = service, .gid = id / 4 % 2 };
	pthread_mutex_init(&e->lock, NULL);
	e->there = e->peer < 0 ? me_process : process_of(e->peer);
	e->on_srq = service == UD ? id / 4 % 2 : id / 8 % 2;
	e->period = e->peer < 0 ? 1 : period_of(e->peer);
	e->send_cq = mix(seed ^ id << 4) % CQS;
	/* which message a receive of the SRQ holds shows by its order alone */
	e->recv_cq = service == RC && e->on_srq ? index % 2 * 2 : index % CQS;
	struct ibv_qp_init_attr init = { .send_cq = cqs[e->send_cq], .recv_cq = cqs[e->recv_cq], .srq = e->on_srq ? srq : NULL,
		.qp_type = (int[]){ IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD }[service],
		.cap = { .max_send_wr = WINDOW, .max_recv_wr = e->on_srq ? 0 : RECVS, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = INLINE } };
	e->qp = ibv_create_qp(pd, &init);
	if (!e->qp) die("create_qp");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
		(service == RC ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) };
	if ((errno = ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				   (service == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))) die("INIT");
	struct card *card = &all->card[id];
	card->qpn = e->qp->qp_num;
	card->rkey = mr->rkey;
	card->atomic_rkey = atomic_mr->rkey;
	card->slots = (uintptr_t)e->slots;
}

static void connect_end(struct end *e, int port_mtu)
{
	int step = e->id / 2 % 5 + IBV_MTU_256;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .rq_psn = e->peer & 0xffffff, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.path_mtu = step < port_mtu ? step : port_mtu,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = e->gid } } };
	int mask = IBV_QP_STATE;
	if (e->service != UD) {
		a.dest_qp_num = all->card[e->peer].qpn;
		a.ah_attr.grh.dgid = all->card[e->peer].gid[e->gid];
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (e->service == RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if ((errno = ibv_modify_qp(e->qp, &a, mask))) die("RTR");
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = e->id; a.timeout = 16; a.retry_cnt = 7; a.rnr_retry = 7; a.max_rd_atomic = 16;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (e->service == RC) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if ((errno = ibv_modify_qp(e->qp, &a, mask))) die("RTS");
}

static void set_up(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid[2];
	size_t each = WINDOW * MAXLEN + SLOTS * MAXLEN + SOURCE + RECVS * (MAXLEN + GRH) + 4 * 4096, room = MINE * each + SRQ_WRS * (MAXLEN + GRH) + 4096;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, index = 0;
	open_device();
	if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, 0, &gid[0]) || ibv_query_gid(context, 1, 1, &gid[1])) die("query");
	uint8_t *arena = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at = arena;
	if (arena == MAP_FAILED || posix_memalign((void **)&words, 4096, 4096)) die("memory");
	memset((void *)words, 0, 4096);
	mr = ibv_reg_mr(pd, arena, room, access);
	atomic_mr = ibv_reg_mr(pd, (void *)words, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr || !atomic_mr) die("reg_mr");
	for (int i = 0; i < CQS; i++) {
		cqs[i] = ibv_create_cq(context, 4096, NULL, i >= 2 ? channel : NULL, 0);
		if (!cqs[i]) die("create_cq");
		if (i >= 2 && ibv_req_notify_cq(cqs[i], 0)) die("req_notify_cq");
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid[i], .hop_limit = 64, .sgid_index = i } };
		ah[i] = ibv_create_ah(pd, &attr);
		if (!ah[i]) die("create_ah");
	}
	struct ibv_srq_init_attr init = { .attr = { .max_wr = SRQ_WRS, .max_sge = 1 } };
	srq = ibv_create_srq(pd, &init);
	if (!srq) die("create_srq");
	srq_buffers = carve(&at, SRQ_WRS * (MAXLEN + GRH));
	for (unsigned i = 0; i < SRQ_WRS; i++) post_shared_receive(i);
	for (int id = 0; id < ENDS; id++) {
		if (process_of(id) != me_process) continue;
		struct end *e = &end[index];
		uint8_t *slots = carve(&at, SLOTS * MAXLEN);
		if (index >= MINE) lost("more than %d ends", MINE);
		e->slots = slots;
		create(e, id, index++);
		e->slots = slots;
		e->local = carve(&at, WINDOW * MAXLEN);
		e->source = carve(&at, SOURCE);
		e->recvs = carve(&at, RECVS * (MAXLEN + GRH));
		fill(seed ^ id, e->source, SOURCE);
		all->card[id].slots = (uintptr_t)slots;
		all->card[id].source = (uintptr_t)e->source;
		all->card[id].words = (uintptr_t)words;
		memcpy(all->card[id].gid, gid, sizeof gid);
		if (!e->on_srq) for (unsigned i = 0; i < RECVS; i++) post_receive(e);
	}
	barrier(0);
	for (int i = 0; i < MINE; i++) connect_end(&end[i], port.active_mtu);
	if (me_process == 0) all->start = now();
	barrier(1);
}

/* Is everything over that this end sent and will get? If not and `say`, ends the process with what is missing. */
static int drained(struct end *e, int say)
{
	uint64_t final = e->service == RC ? all->card[e->peer].final : 1, arrived = e->base * e->period;
	int over = e->stopped && e->retired == e->posted && (e->service != RC || (final && arrived == final - 1));
	if (over || !say) return over;
	if (e->retired < e->posted && next_signaled(e) < e->posted) {
		uint64_t n = next_signaled(e);
		struct op op = op_of(e->id, n);
		lost("%s: %s %llu of %u octets never completed (%llu are posted)", name(e), kind_name[op.kind], (unsigned long long)n, op.len,
		     (unsigned long long)e->posted);
	}
	if (!e->stopped) lost("%s: stands still before operation %llu, the other end has verified %llu", name(e), (unsigned long long)e->posted,
			      e->service == RC ? (unsigned long long)all->card[e->peer].verified : 0);
	lost("%s: message %llu of the other end never arrived (it ended after %llu operations)", name(e), (unsigned long long)e->base,
	     final ? (unsigned long long)final - 1 : 0);
	return 0;
}

static void run(void)
{
	pthread_t thread[64];
	deadline = all->start + seconds * 1000000000ull;
	for (int i = 0; i < threads; i++) if (pthread_create(&thread[i], NULL, i % 2 ? waiter : poller, (void *)(uintptr_t)i)) die("pthread_create");
	for (int i = 0; i < MINE;) {
		pthread_mutex_lock(&end[i].lock);
		uint64_t last = all->spoiled > deadline ? all->spoiled : deadline;
		int over = drained(&end[i], time_is_up() && now() > last + patience * 1000000000ull);
		pthread_mutex_unlock(&end[i].lock);
		if (over) i++;
		else usleep(10000);
	}
	barrier(2);
	for (int i = 0; i < WORDS; i++) if (words[i] != all->added[me_process][i]) lost("the common word %d holds %llu, and %llu was added", i,
		(unsigned long long)words[i], (unsigned long long)all->added[me_process][i]);
	for (int i = 0; i < MINE; i++) if (end[i].service == RC && words[WORDS + end[i].id] != all->card[end[i].peer].own_word)
		lost("%s: the word that its peer alone changes is %#llx instead of %#llx", name(&end[i]), (unsigned long long)words[WORDS + end[i].id],
		     (unsigned long long)all->card[end[i].peer].own_word);
	barrier(3);
	/* what is left of receives is flushed, each once */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	for (int i = 0; i < MINE; i++) {
		pthread_mutex_lock(&end[i].lock);
		end[i].flushing = 1;
		pthread_mutex_unlock(&end[i].lock);
		if ((errno = ibv_modify_qp(end[i].qp, &error, IBV_QP_STATE))) die("ERR");
	}
	uint64_t until = now() + patience * 1000000000ull;
	for (int i = 0; i < MINE;) {
		struct end *e = &end[i];
		pthread_mutex_lock(&e->lock);
		uint64_t missing = e->recv_posted - e->recv_done - e->recv_flushed;
		if (missing && now() > until) lost("%s: %llu of %llu receives were not flushed", name(e), (unsigned long long)missing,
						      (unsigned long long)e->recv_posted);
		pthread_mutex_unlock(&e->lock);
		if (missing) usleep(1000);
		else i++;
	}
	/* each sleeper wakes by one more flushed receive */
	struct ibv_recv_wr wake = { .wr_id = WAKE }, *bad;
	struct ibv_qp *waker = NULL;
	for (int i = 0; i < MINE; i++) if (end[i].recv_cq == 2 && !end[i].on_srq) waker = end[i].qp;
	quit = 1;
	for (int i = 0; i < threads; i++) {
		while (pthread_tryjoin_np(thread[i], NULL)) {
			if (now() > until) lost("thread %d sleeps, though its armed completion queue got completions", i);
			if (ibv_post_recv(waker, &wake, &bad)) reap_some(2, 0);
			usleep(1000);
		}
	}
}

static void take_down(void)
{
	for (int i = 0; i < MINE; i++) if ((errno = ibv_destroy_qp(end[i].qp))) die("destroy_qp");
	for (int i = 0; i < CQS; i++) if ((errno = ibv_destroy_cq(cqs[i]))) die("destroy_cq");
	if ((errno = ibv_destroy_ah(ah[0])) || (errno = ibv_destroy_ah(ah[1])) || (errno = ibv_destroy_srq(srq)) || (errno = ibv_dereg_mr(mr)) ||
	    (errno = ibv_dereg_mr(atomic_mr)) || (errno = ibv_destroy_cq(cq)) || (errno = ibv_destroy_comp_channel(channel)) ||
	    (errno = ibv_dealloc_pd(pd)) || (errno = ibv_close_device(context))) die("take down");
}

static int report(void)
{
	int good = 1;
	for (enum service s = RC; s <= UD; s++) {
		struct card sum = { 0 };
		int ends = 0;
		for (int id = 0; id < ENDS; id++) {
			const struct card *c = &all->card[id];
			if (service_of(id) != s) continue;
			ends++;
			sum.sent += c->sent, sum.sent_octets += c->sent_octets, sum.received += c->received, sum.received_octets += c->received_octets;
			sum.completed += c->completed, sum.atomics += c->atomics, sum.overtaken += c->overtaken;
			if (!c->sent || (!c->received && s != UD)) {
				fprintf(stderr, "stress: %s end %d sent %llu and received %llu messages\n", service_name[s], id,
					(unsigned long long)c->sent, (unsigned long long)c->received);
				good = 0;
			}
		}
		printf("%s: %d QPs, %llu operations of %llu octets (%llu atomics), %llu completions, %llu messages received of %llu octets",
		       service_name[s], ends, (unsigned long long)sum.sent, (unsigned long long)sum.sent_octets, (unsigned long long)sum.atomics,
		       (unsigned long long)sum.completed, (unsigned long long)sum.received, (unsigned long long)sum.received_octets);
		if (s != RC) printf(" (%.2f %%)", 100.0 * sum.received / sum.sent);
		if (sum.overtaken) printf(", %llu overtaken", (unsigned long long)sum.overtaken);
		printf("\n");
		if (sum.received <= 2 * sum.overtaken || !sum.received) good = 0;
	}
	return good;
}

int main(int argc, char **argv)
{
	int first = options(argc, argv), good = 1;
	pid_t child[PROCS];
	if (first >= argc) { fprintf(stderr, "stress: SECONDS [THREADS [SEED [SPOIL]]]\n"); return 2; }
	seconds = atoi(argv[first]);
	if (first + 1 < argc) threads = atoi(argv[first + 1]);
	if (first + 2 < argc) seed = strtoull(argv[first + 2], NULL, 0);
	if (first + 3 < argc) spoil = argv[first + 3], patience = 2;
	if (seconds < 1 || threads < 2 || threads > 64) { fprintf(stderr, "stress: at least 1 second and 2 to 64 threads\n"); return 2; }
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED) die("memory");
	for (int i = 0; i < PROCS; i++) {
		child[i] = fork();
		if (child[i] < 0) die("fork");
		if (child[i]) continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		me_process = i;
		set_up();
		run();
		take_down();
		_exit(0);
	}
	alarm(seconds + 4 * PATIENCE);
	for (int left = PROCS; left; left--) {
		int status;
		pid_t pid = wait(&status);
		if (pid < 0) die("wait");
		for (int i = 0; i < PROCS; i++) if (child[i] == pid) child[i] = 0;
		if (status && good) {
			good = 0;
			fprintf(stderr, "stress: a process ended with %s %d\n", WIFSIGNALED(status) ? "signal" : "status",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			for (int i = 0; i < PROCS; i++) if (child[i]) kill(child[i], SIGTERM);
		}
	}
	good = report() && good;
	printf("%d queue pairs, %d processes, %d threads in each, %d s, seed %llu\n", ENDS, PROCS, threads, seconds, (unsigned long long)seed);
	return good ? 0 : 1;
}
