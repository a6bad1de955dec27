/*
 * An end of stress: the requester, which posts and checks what comes back, and the responder, which checks what arrives.
 */
#include "stress.h"

/* what the processes know of each other's ends */
struct card {
	uint32_t qpn, rkey, atomic_rkey;
	uint64_t slots, source, words;
	union ibv_gid gid[2];
	_Atomic uint64_t posted, verified, arrived;	/* operations; arrived: of this end's, at others */
	_Atomic uint64_t final, own_word;		/* operations in all, plus one; its peer's word when all is over */
	/* for the report */
	uint64_t sent, sent_octets, received, received_octets, completed, atomics, overtaken;
};

static struct shared {
	struct card card[ENDS];
	_Atomic int at_barrier[4];
	_Atomic uint64_t added[PROCS][WORDS];
	uint64_t start;
	_Atomic uint64_t spoiled;			/* when */
} *all;

struct end {
	pthread_mutex_t lock;
	int id, peer, process, there, period, gid, send_cq, recv_cq, on_srq, stopped, flushing;
	enum service service;
	struct ibv_qp *qp;
	uint8_t *local, *slots, *source, *recvs;
	/* the requester: operations posted and retired; which of those between have completed */
	uint64_t posted, retired, forgiven, waits_since;
	uint8_t completed[WINDOW];
	uint64_t old[WINDOW], own_word, seen[WORDS];
	/* the responder: receives posted, done, flushed; messages verified without a gap */
	uint64_t recv_posted, recv_done, recv_flushed, recv_next, messages, base;
	uint8_t recv_out[RECVS], verified[SLOTS];
	uint64_t arrived[UDS][REMEMBER];
};

static struct end end[MINE];
static struct ibv_cq *cqs[CQS];
static pthread_mutex_t in_order[CQS] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER };
static struct ibv_srq *srq;
static struct ibv_mr *mr, *atomic_mr;
static struct ibv_ah *ah[2];
static pthread_mutex_t srq_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *srq_buffers, srq_out[SRQ_WRS];
static _Atomic uint64_t *words;		/* the common ones, then one an end */
static int me_process, threads = 2, seconds;
static uint64_t deadline;
static atomic_int quit;
static const char *spoil = "";
static uint64_t patience = PATIENCE;	/* seconds until something is lost */

static void lost(const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	fprintf(stderr, "stress: process %d: %s (seed %llu)\n", me_process, text, (unsigned long long)seed);
	_exit(1);
}

static const char *name(const struct end *e)
{
	static _Thread_local char text[80];
	snprintf(text, sizeof text, "%s queue pair %#x%s%s%d", service_name[e->service], e->qp->qp_num, e->on_srq ? " on the SRQ" : "",
		 e->service == UD ? " of process " : " to process ", e->service == UD ? e->process : e->there);
	return text;
}

/* ---- the requester ---- */

static void post_list(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(e->qp, wr, &bad);
	if (error) lost("%s: ibv_post_send: %s", name(e), strerror(error));
}

/* Makes operation n; `sge` has room for two. */
static void make(struct end *e, uint64_t n, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	static const int opcode[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
	struct op op = op_of(e->id, n);
	struct card *mine = &all->card[e->id];
	uint8_t *at = e->local + n % WINDOW * MAXLEN;
	uint32_t half = op.len > 1 && op.kind < ADD_OWN && (op.bits & 4) ? 1 + (op.bits >> 8) % (op.len - 1) : op.len;
	sge[0] = (struct ibv_sge){ (uintptr_t)at, half, mr->lkey };
	sge[1] = (struct ibv_sge){ (uintptr_t)at + half, op.len - half, mr->lkey };
	*wr = (struct ibv_send_wr){ .wr_id = (uint64_t)e->id << 40 | n, .sg_list = sge, .num_sge = op.len == 0 ? 0 : half < op.len ? 2 : 1,
		.opcode = opcode[op.kind], .imm_data = htonl((uint32_t)n),
		.send_flags = (op.signaled ? IBV_SEND_SIGNALED : 0) | (op.in_line ? IBV_SEND_INLINE : 0) | (op.bits & 8 ? IBV_SEND_SOLICITED : 0) |
			(e->service == RC && (op.bits & 0x70) == 0 ? IBV_SEND_FENCE : 0) };
	if (op.kind <= WRITE_IMM) fill(op.data, at, op.len);
	if (e->service != RC && op.kind <= SEND_IMM) memcpy(at, (uint64_t[]){ n, e->id }, 16);
	if (e->service == UD) {
		const struct card *to = &all->card[ENDS - UDS + (op.bits >> 16) % UDS];
		wr->wr.ud.ah = ah[op.bits >> 32 & 1];
		wr->wr.ud.remote_qpn = to->qpn;
		wr->wr.ud.remote_qkey = 0x11111111;
	} else {
		const struct card *to = &all->card[e->peer];
		wr->wr.rdma.rkey = to->rkey;
		wr->wr.rdma.remote_addr = op.kind == READ ? to->source + (op.bits >> 16) % (SOURCE - MAXLEN) :
			to->slots + (op.kind == READ_BACK ? n - 1 : n) % SLOTS * MAXLEN;
		if (op.kind >= ADD_OWN) {
			int common = op.kind >= ADD_COMMON, word = common ? (op.bits >> 8) % WORDS : WORDS + e->peer;
			uint64_t by = 1 + (op.bits >> 16) % 1000;
			wr->wr.atomic.rkey = to->atomic_rkey;
			wr->wr.atomic.remote_addr = to->words + 8 * word;
			if (op.kind == ADD_OWN || op.kind == ADD_COMMON) {
				wr->wr.atomic.compare_add = by;
				e->old[n % WINDOW] = e->own_word;
				if (!common) e->own_word += by;
			} else if (common) {
				/* the word as last seen: succeeds if nobody was faster */
				wr->wr.atomic.compare_add = e->old[n % WINDOW] = e->seen[word];
				wr->wr.atomic.swap = e->seen[word] + by;
			} else {
				int hit = op.bits >> 40 & 1;
				wr->wr.atomic.compare_add = hit ? e->own_word : e->own_word + 1;
				wr->wr.atomic.swap = op.data;
				e->old[n % WINDOW] = e->own_word;
				if (hit) e->own_word = op.data;
			}
		}
	}
	mine->sent++;
	mine->sent_octets += op.len;
}

static int time_is_up(void) { return now() >= deadline && (!*spoil || all->spoiled); }

/* May operation n be posted? */
static int room(struct end *e, uint64_t n)
{
	struct card *mine = &all->card[e->id];
	if (n - e->retired >= WINDOW) return 0;
	if (e->service == RC) return n - all->card[e->peer].verified < SLOTS;
	/* what is on its way too long is lost, as these services may */
	if (n - e->forgiven < mine->arrived + SLOTS / 2) { e->waits_since = 0; return 1; }
	if (!e->waits_since) e->waits_since = now();
	if (now() - e->waits_since < 50000000) return 0;
	e->forgiven = n - mine->arrived;
	return 1;
}

/* Posts what may be posted; whether there was something. */
static int drive(struct end *e)
{
	struct ibv_send_wr wr[4];
	struct ibv_sge sge[4][2];
	unsigned n = 0, list = 1 + mix(e->posted ^ seed) % 4;
	if (e->stopped || e->flushing) return 0;
	while (n < list && room(e, e->posted)) {
		if (e->posted % 8 == 0 && time_is_up()) { e->stopped = 1; break; }
		make(e, e->posted, &wr[n], sge[n]);
		if (n) wr[n - 1].next = &wr[n];
		n++;
		e->posted++;
	}
	all->card[e->id].posted = e->posted;
	if (n) post_list(e, wr);
	/* inline data has been taken by now */
	for (unsigned i = 0; i < n; i++) if (wr[i].send_flags & IBV_SEND_INLINE) memset(e->local + (e->posted - n + i) % WINDOW * MAXLEN, 0xdd, INLINE);
	if (e->stopped) {
		all->card[e->id].own_word = e->own_word;
		all->card[e->id].final = e->posted + 1;
	}
	return n;
}

/* Operation n is over: what it brought must be right. */
static void retire(struct end *e, uint64_t n)
{
	struct op op = op_of(e->id, n);
	const uint8_t *at = e->local + n % WINDOW * MAXLEN;
	uint64_t old, expected = e->old[n % WINDOW];
	long wrong = -1;
	if (op.kind == READ) wrong = differs(seed ^ e->peer, (op.bits >> 16) % (SOURCE - MAXLEN), at, op.len);
	if (op.kind == READ_BACK) wrong = differs(op_of(e->id, n - 1).data, 0, at, op.len);
	if (wrong >= 0) lost("%s: %s %llu of %u octets brought a wrong octet at %ld", name(e), kind_name[op.kind], (unsigned long long)n, op.len, wrong);
	if (op.kind < ADD_OWN) return;
	all->card[e->id].atomics++;
	memcpy(&old, at, 8);
	if (op.kind <= SWAP_OWN) {
		if (old != expected) lost("%s: %s %llu found %#llx instead of %#llx", name(e), kind_name[op.kind], (unsigned long long)n,
					  (unsigned long long)old, (unsigned long long)expected);
		return;
	}
	int word = (op.bits >> 8) % WORDS;
	uint64_t by = 1 + (op.bits >> 16) % 1000;
	if (old < e->seen[word]) lost("%s: %s %llu: the word ran backwards", name(e), kind_name[op.kind], (unsigned long long)n);
	if (op.kind == ADD_COMMON || old == expected) {
		all->added[e->there][word] += by;
		old += by;
	}
	e->seen[word] = old;
}

static uint64_t next_signaled(const struct end *e)
{
	uint64_t n = e->retired;
	while (!op_of(e->id, n).signaled) n++;
	return n;
}

static void send_done(struct end *e, uint64_t n, int strict)
{
	struct op op = op_of(e->id, n);
	if (n < e->retired || n >= e->posted) lost("%s: a completion of %s %llu, but %llu to %llu are outstanding", name(e), kind_name[op.kind],
		(unsigned long long)n, (unsigned long long)e->retired, (unsigned long long)e->posted);
	if (!op.signaled) lost("%s: %s %llu was unsignaled and completed", name(e), kind_name[op.kind], (unsigned long long)n);
	if (e->completed[n % WINDOW]) lost("%s: %s %llu completed twice", name(e), kind_name[op.kind], (unsigned long long)n);
	if (strict && n != next_signaled(e)) lost("%s: %s %llu completed before %llu", name(e), kind_name[op.kind], (unsigned long long)n,
		(unsigned long long)next_signaled(e));
	e->completed[n % WINDOW] = 1;
	all->card[e->id].completed++;
	/* threads that poll at once may come here in another order than the completions had */
	while (e->retired < e->posted) {
		uint64_t to = next_signaled(e);
		if (to >= e->posted || !e->completed[to % WINDOW]) break;
		e->completed[to % WINDOW] = 0;
		while (e->retired <= to) retire(e, e->retired++);
	}
}

/* ---- the responder ---- */

static void post_receive(struct end *e)
{
	uint64_t n = e->recv_posted++;
	struct ibv_sge sge = { (uintptr_t)e->recvs + n % RECVS * (MAXLEN + GRH), MAXLEN + GRH, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = RECV_BIT | (uint64_t)e->id << 40 | n, .sg_list = &sge, .num_sge = 1 }, *bad;
	e->recv_out[n % RECVS] = 1;
	int error = ibv_post_recv(e->qp, &wr, &bad);
	if (error) lost("%s: ibv_post_recv: %s", name(e), strerror(error));
}

static void post_shared_receive(unsigned i)
{
	struct ibv_sge sge = { (uintptr_t)srq_buffers + i * (MAXLEN + GRH), MAXLEN + GRH, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = RECV_BIT | SRQ_BIT | i, .sg_list = &sge, .num_sge = 1 }, *bad;
	srq_out[i] = 1;
	int error = ibv_post_srq_recv(srq, &wr, &bad);
	if (error) lost("ibv_post_srq_recv: %s", strerror(error));
}

/* Message n of end `from` arrived in `at` (SEND) or in its slot. */
static void message(struct end *e, int from, uint64_t n, const struct ibv_wc *wc, const uint8_t *at)
{
	struct op op = op_of(from, n);
	struct card *mine = &all->card[e->id];
	int written = op.kind == WRITE_IMM, imm = op.kind == SEND_IMM || written;
	uint32_t len = wc->byte_len - (e->service == UD ? GRH : 0);
	if (wc->opcode != (written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || !(wc->wc_flags & IBV_WC_WITH_IMM) != !imm || len != op.len)
		lost("%s: %s %llu of %u octets arrived as opcode %d, flags %#x, %u octets", name(e), kind_name[op.kind], (unsigned long long)n,
		     op.len, wc->opcode, wc->wc_flags, len);
	if (imm && ntohl(wc->imm_data) != (uint32_t)n) lost("%s: %s %llu has immediate data %#x", name(e), kind_name[op.kind], (unsigned long long)n,
		ntohl(wc->imm_data));
	if (e->service == UD && wc->src_qp != all->card[from].qpn) lost("%s: message %llu of %#x came from %#x", name(e), (unsigned long long)n,
		all->card[from].qpn, wc->src_qp);
	uint32_t head = e->service != RC && !written ? 16 : 0;
	long wrong = differs(op.data, head, written ? e->slots + n % SLOTS * MAXLEN : at + head, op.len - head);
	/* nothing but RC keeps a slot from being written again */
	if (wrong >= 0 && e->service == UC && written && all->card[from].posted > n + SLOTS) { wrong = -1; mine->overtaken++; }
	if (wrong >= 0) lost("%s: %s %llu of %u octets arrived with a wrong octet at %ld", name(e), kind_name[op.kind], (unsigned long long)n, op.len, wrong);
	mine->received++;
	mine->received_octets += op.len;
}

/* Of a reliable connection, message k. */
static void reliable(struct end *e, uint64_t k, const struct ibv_wc *wc, const uint8_t *at)
{
	uint64_t n = k * e->period + e->period - 1;
	if (k < e->base || k >= e->base + SLOTS || e->verified[k % SLOTS]) lost("%s: message %llu arrived twice", name(e), (unsigned long long)k);
	/* WRITEs before it must be there by now */
	for (uint64_t m = n - (e->period - 1); m < n; m++) {
		struct op op = op_of(e->peer, m);
		long wrong = op.kind == WRITE ? differs(op.data, 0, e->slots + m % SLOTS * MAXLEN, op.len) : -1;
		if (wrong >= 0) lost("%s: WRITE %llu of %u octets left a wrong octet at %ld", name(e), (unsigned long long)m, op.len, wrong);
	}
	message(e, e->peer, n, wc, at);
	e->verified[k % SLOTS] = 1;
	while (e->verified[e->base % SLOTS]) e->verified[e->base++ % SLOTS] = 0;
	all->card[e->id].verified = e->base * e->period;
}

static void unreliable(struct end *e, const struct ibv_wc *wc, const uint8_t *at)
{
	uint64_t head[2] = { ntohl(wc->imm_data), e->peer };
	int from = e->peer, of = 0;
	if (wc->opcode == IBV_WC_RECV) memcpy(head, at, 16);
	if (e->service == UD) from = head[1], of = from - (ENDS - UDS);
	if (head[1] != (uint64_t)from || of < 0 || of >= UDS || head[0] >= all->card[from].posted)
		lost("%s: a message that nobody sent", name(e));
	uint64_t *remembered = &e->arrived[of][head[0] % REMEMBER];
	if (*remembered == head[0] + 1) lost("%s: message %llu arrived twice", name(e), (unsigned long long)head[0]);
	*remembered = head[0] + 1;
	message(e, from, head[0], wc, at);
	all->card[from].arrived++;
}

static void receive_done(struct end *e, const struct ibv_wc *wc, int strict)
{
	if (wc->wr_id & SRQ_BIT) {
		unsigned i = wc->wr_id & 0xffff;
		pthread_mutex_lock(&srq_lock);
		if (!e->on_srq || i >= SRQ_WRS || !srq_out[i]) lost("%s: receive %u of the SRQ completed twice", name(e), i);
		srq_out[i] = 0;
		pthread_mutex_unlock(&srq_lock);
		const uint8_t *at = srq_buffers + i * (MAXLEN + GRH);
		if (e->service == RC) reliable(e, e->messages++, wc, at);
		else unreliable(e, wc, at + (e->service == UD ? GRH : 0));
		pthread_mutex_lock(&srq_lock);
		post_shared_receive(i);
		pthread_mutex_unlock(&srq_lock);
		return;
	}
	uint64_t n = wc->wr_id & 0xffffffffffull;
	if (n >= e->recv_posted || n + RECVS < e->recv_posted || !e->recv_out[n % RECVS]) lost("%s: receive %llu completed twice", name(e), (unsigned long long)n);
	if (strict && n != e->recv_next) lost("%s: receive %llu completed before %llu", name(e), (unsigned long long)n, (unsigned long long)e->recv_next);
	e->recv_next = n + 1;
	e->recv_out[n % RECVS] = 0;
	if (wc->status) { e->recv_flushed++; return; }
	e->recv_done++;
	const uint8_t *at = e->recvs + n % RECVS * (MAXLEN + GRH);
	if (e->service == RC) reliable(e, n, wc, at);
	else unreliable(e, wc, at + (e->service == UD ? GRH : 0));
	/* into the oldest place, which another thread may not have come to yet */
	while (!e->flushing && e->recv_posted < e->recv_done + RECVS && !e->recv_out[e->recv_posted % RECVS]) post_receive(e);
}
