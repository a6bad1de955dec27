/* RDMA to and from the memory of a GPU, which the processor cannot touch. */
#include "cm.h"
#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 64 << 20, EDGE = 64 };

static int iwarp;

static struct ibv_wc ended(struct end *end, enum ibv_wc_status status, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next_wc(end);

	if (wc.status != status)
		fprintf(stderr, "%s instead of %s\n", ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	CHECK(wc.status == status);
	CHECK(status != IBV_WC_SUCCESS || wc.opcode == opcode);
	return wc;
}

/* One message of each kind, of `length` octets between unaligned places; what is beside them stays. */
static void exchange(struct end *from, struct end *to, size_t length, unsigned int seed)
{
	static const enum ibv_wr_opcode kinds[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
						    IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ };
	static const enum ibv_wc_opcode here[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
						   IBV_WC_RDMA_READ };
	size_t out = EDGE + seed % 61, in = EDGE + seed % 53;

	for (int kind = 0; kind < 5; kind++) {
		int reads = kinds[kind] == IBV_WR_RDMA_READ, receives = kind && !reads;
		struct end *source = reads ? to : from, *sink = reads ? from : to;

		if (iwarp && kind == 3)
			continue;
		fill(source->memory + (reads ? in : out), length, seed + kind);
		fill(sink->memory + (reads ? out : in) - EDGE, length + 2 * EDGE, 99);
		if (receives)
			post_receive(to, 7, in, length);
		NEED(post(from, kinds[kind], 8, out, length, to, in, IBV_SEND_SIGNALED) == 0);
		ended(from, IBV_WC_SUCCESS, here[kind]);
		if (receives) {
			struct ibv_wc wc =
				ended(to, IBV_WC_SUCCESS, kind == 1 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);

			CHECK(wc.byte_len == length);
		} else if (iwarp && !reads) {
			/* The completion of a WRITE tells only that TCP has it; an empty READ behind it tells more. */
			NEED(post(from, IBV_WR_RDMA_READ, 9, 0, 1, to, 0, IBV_SEND_SIGNALED) == 0);
			ended(from, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		}
		char *placed = sink->memory + (reads ? out : in);
		size_t wrong = differs(placed, length, seed + kind);

		if (wrong != length)
			fprintf(stderr, "kind %d of %zu octets: octet %zu is wrong\n", kind, length, wrong);
		CHECK(wrong == length);
		CHECK(differs(placed - EDGE, EDGE, 99) == EDGE);
	}
}

static void lengths(struct end *a, struct end *b, size_t most)
{
	static const size_t all[] = { 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536,
				      65537, 524287, 524288, 524289, (1 << 20) + 1, (5 << 20) + 13, MOST };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && all[i] <= most; i++)
		exchange(a, b, all[i], 17 * i + 1);
}

struct flagged {
	uint64_t *flag;
	const char *data;
	uint32_t length, rounds;
	/* How far the kernel has come, and what it found wrong. */
	volatile uint32_t *reached, *wrong;
};

/* A kernel that waits for flags and looks at the data that was written before each: the same, in CUDA's assembly. */
static void *kernel(void *argument)
{
	struct flagged *of = argument;
	volatile uint64_t *flag = fake_view ? (void *)fake_view((CUdeviceptr)of->flag) : NULL;

	NEED(cuCtxPushCurrent_v2(primary) == 0);
	if (flag)
		fake_kernel(1);
	for (uint32_t round = 1; round <= of->rounds; round++) {
		while (*(flag ? flag : of->flag) != round)
			;
		atomic_thread_fence(memory_order_seq_cst);
		*of->wrong += differs(of->data, of->length, round) != of->length;
		atomic_thread_fence(memory_order_seq_cst);
		*of->reached = round;
	}
	if (flag)
		fake_kernel(0);
	return NULL;
}

static const char assembly[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry waits(.param .u64 p0, .param .u64 p1, .param .u32 p2, .param .u32 p3, .param .u64 p4, .param .u64 p5)\n"
	"{ .reg .pred p; .reg .u32 round, rounds, length, at, seed, octet, want, wrong; .reg .u64 flag, data, reached, bad, seen, place;\n"
	" ld.param.u64 flag, [p0]; ld.param.u64 data, [p1]; ld.param.u32 length, [p2]; ld.param.u32 rounds, [p3];\n"
	" ld.param.u64 reached, [p4]; ld.param.u64 bad, [p5]; mov.u32 round, 1; mov.u32 wrong, 0;\n"
	"next: ld.volatile.global.u64 seen, [flag]; cvt.u64.u32 place, round; setp.ne.u64 p, seen, place; @p bra next;\n"
	" membar.sys; mov.u32 at, 0; mov.u32 seed, round; mov.u64 place, data;\n"
	"octets: mad.lo.u32 seed, seed, 1103515245, 12345; shr.u32 want, seed, 16; and.b32 want, want, 255;\n"
	" ld.volatile.global.u8 octet, [place]; setp.ne.u32 p, octet, want; @p add.u32 wrong, wrong, 1;\n"
	" add.u64 place, place, 1; add.u32 at, at, 1; setp.lt.u32 p, at, length; @p bra octets;\n"
	" st.volatile.global.u32 [bad], wrong; membar.sys; st.volatile.global.u32 [reached], round;\n"
	" add.u32 round, round, 1; setp.le.u32 p, round, rounds; @p bra next; ret; }\n";

/* Begins the kernel on the device, in the stream that all others of the program wait for. */
static void launch(struct flagged *of)
{
	void *module, *function;
	void *arguments[] = { &of->flag, &of->data, &of->length, &of->rounds, (void *)&of->reached, (void *)&of->wrong };

	NEED(cuModuleLoadData(&module, assembly) == 0 && cuModuleGetFunction(&function, module, "waits") == 0);
	NEED(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0);
}

/* A flag behind the data, on the device or in host memory, by a WRITE of its own. */
static void flags(struct end *from, struct end *to, struct end *flag, int on_device)
{
	static char *page;
	size_t places[] = { 4096, 4096 + 30000 };
	pthread_t thread;

	if (!page) {
		NEED((page = aligned_alloc(4096, 4096)));
		NEED(cuMemHostRegister_v2(page, 4096, 1) == 0);
	}
	struct flagged of = {
		.flag = (uint64_t *)(flag->memory + 65528),
		.data = to->memory + 4096,
		.length = 30000,
		.rounds = 60,
		.reached = (volatile uint32_t *)page,
		.wrong = (volatile uint32_t *)page + 1,
	};
	int launches = on_device && !fake_view;

	memset(page, 0, 8);
	set_word(of.flag, 0);
	if (launches)
		launch(&of);
	else
		NEED(pthread_create(&thread, NULL, kernel, &of) == 0);
	for (uint32_t round = 1; round <= of.rounds; round++) {
		fill(from->memory + 4096, of.length, round);
		set_word(from->memory, round);
		/* In two WRITEs, and nobody looks at a completion. */
		NEED(post(from, IBV_WR_RDMA_WRITE, 1, places[0], 10000, to, 4096, 0) == 0);
		NEED(post(from, IBV_WR_RDMA_WRITE, 2, places[0] + 10000, 20000, to, 4096 + 10000, 0) == 0);
		NEED(post(from, IBV_WR_RDMA_WRITE, 3, 0, 8, flag, 65528, IBV_SEND_SIGNALED) == 0);
		ended(from, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		alarm(20);
		while (*of.reached != round)
			usleep(10);
		alarm(0);
	}
	NEED(launches || pthread_join(thread, NULL) == 0);
	CHECK(*of.wrong == 0);
}

static uint64_t atomic(struct end *from, enum ibv_wr_opcode opcode, struct end *to, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge = { (uintptr_t)from->memory + 64, 8, from->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.atomic.remote_addr = (uintptr_t)to->memory + 8;
	wr.wr.atomic.rkey = to->mr->rkey;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	NEED(ibv_post_send(from->qp, &wr, &bad) == 0);
	ended(from, IBV_WC_SUCCESS, opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD);
	return word_at(from->memory + 64);
}

static void atomics(struct end *a, struct end *b)
{
	char *word = b->memory + 8;

	set_word(word, 1000);
	for (unsigned int i = 0; i < 50; i++)
		CHECK(atomic(a, IBV_WR_ATOMIC_FETCH_AND_ADD, b, 3, 0) == 1000 + 3 * i);
	CHECK(word_at(word) == 1150);
	CHECK(atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, b, 1150, 77) == 1150 && word_at(word) == 77);
	CHECK(atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, b, 1150, 78) == 77 && word_at(word) == 77);
}

/* Many small messages in flight, whose buffers are used again at once; a list of host and device memory; inline data. */
static void streams(struct end *a, struct end *b, struct end *host)
{
	for (int i = 0; i < 400; i++) {
		if (i >= 8)
			ended(b, IBV_WC_SUCCESS, IBV_WC_RECV);
		if (i >= 8)
			CHECK(differs(b->memory + (i % 8) * 512, 500, i - 8) == 500);
		post_receive(b, i, (i % 8) * 512, 512);
		fill(a->memory + (i % 8) * 512, 500, i);
		NEED(post(a, IBV_WR_SEND, i, (i % 8) * 512, 500, b, 0, IBV_SEND_SIGNALED) == 0);
		ended(a, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	for (int i = 0; i < 8; i++)
		ended(b, IBV_WC_SUCCESS, IBV_WC_RECV);

	struct ibv_sge list[] = {
		{ (uintptr_t)a->memory + 3, 3000, a->mr->lkey },
		{ (uintptr_t)host->memory + 5, 3000, host->mr->lkey },
		{ (uintptr_t)a->memory + 9001, 3000, a->mr->lkey },
	}, into[] = {
		{ (uintptr_t)host->memory + 8192, 4000, host->mr->lkey },
		{ (uintptr_t)b->memory + 1, 5000, b->mr->lkey },
	};
	struct ibv_send_wr send = { .sg_list = list, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_recv_wr receive = { .sg_list = into, .num_sge = 2 }, *bad_receive;
	unsigned char all[9000], got[9000];

	for (int i = 0; i < 3; i++) {
		fill((void *)(uintptr_t)list[i].addr, 3000, i);
		copy(all + 3000 * i, (void *)(uintptr_t)list[i].addr, 3000);
	}
	NEED(ibv_post_recv(b->qp, &receive, &bad_receive) == 0 && ibv_post_send(a->qp, &send, &bad) == 0);
	ended(a, IBV_WC_SUCCESS, IBV_WC_SEND);
	ended(b, IBV_WC_SUCCESS, IBV_WC_RECV);
	memcpy(got, host->memory + 8192, 4000);
	copy(got + 4000, b->memory + 1, 5000);
	CHECK(!memcmp(all, got, 9000));

	fill(a->memory, 64, 5);
	NEED(post(a, IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0);
	fill(a->memory, 64, 6);
	ended(a, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	if (!iwarp)
		CHECK(differs(b->memory, 64, 5) == 64);
}

/* Copies are of messages and not of packets. */
static void gathers(struct end *a, struct end *b)
{
	unsigned long before = fake_count().copies;

	NEED(post(a, IBV_WR_RDMA_WRITE, 1, 1, 2 << 20, b, 3, IBV_SEND_SIGNALED) == 0);
	ended(a, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	/* From the device in a piece of 64 KiB and nine more, to it in eight. */
	unsigned long copies = fake_count().copies - before;

	/* Packets that were lost cost further ones. */
	CHECK(copies >= 17 && copies < 128);
}

/* A key to a part of the device's memory. */
static void windows(struct end *a, struct end *b)
{
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mr *mr = ibv_reg_mr(pd, b->memory, 65536, ALL | IBV_ACCESS_MW_BIND), whole = *b->mr;

	NEED(window && mr);
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)b->memory + 1000, 5000, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ },
	};

	NEED(ibv_bind_mw(b->qp, window, &bind) == 0);
	ended(b, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
	b->mr->rkey = window->rkey;
	fill(a->memory, 5000, 31);
	NEED(post(a, IBV_WR_RDMA_WRITE, 1, 0, 5000, b, 1000, IBV_SEND_SIGNALED) == 0);
	ended(a, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	CHECK(differs(b->memory + 1000, 5000, 31) == 5000);
	*b->mr = whole;
	CHECK(ibv_dealloc_mw(window) == 0 && ibv_dereg_mr(mr) == 0);
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	NEED(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE) == 0);
}

/* A message of an unreliable service, from the device to the device. */
static void unreliable(struct end *a, struct end *b, enum ibv_qp_type type)
{
	enum { HEADER = 40, QKEY_OF_TEST = 0x1234 };
	size_t before = type == IBV_QPT_UD ? HEADER : 0, length = type == IBV_QPT_UD ? 1000 : 50000;
	struct end ends[] = { *a, *b };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	struct ibv_ah *ah;

	NEED(!ibv_query_gid(context, 1, 0, &to.grh.dgid) && (ah = ibv_create_ah(pd, &to)));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = a->cq, .recv_cq = b->cq, .qp_type = type,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		NEED((ends[i].qp = ibv_create_qp(pd, &init)));
		modify(ends[i].qp,
		       (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY_OF_TEST },
		       IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = to,
					   .dest_qp_num = ends[!i].qp->qp_num };

		modify(ends[i].qp, rtr,
		       type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
		modify(ends[i].qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_SQ_PSN);
	}
	fill(a->memory + 7, length, 41);
	post_receive(&ends[1], 3, 11, before + length);
	struct ibv_sge sge = { (uintptr_t)a->memory + 7, length, a->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	if (type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = ends[1].qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY_OF_TEST;
	}
	NEED(ibv_post_send(ends[0].qp, &wr, &bad) == 0);
	ended(a, IBV_WC_SUCCESS, IBV_WC_SEND);
	struct ibv_wc wc = ended(b, IBV_WC_SUCCESS, IBV_WC_RECV);

	CHECK(wc.byte_len == before + length && differs(b->memory + 11 + before, length, 41) == length);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(ends[i].qp) == 0);
	CHECK(ibv_destroy_ah(ah) == 0);
}

/* Memory that is freed while it is registered, and a registration that ends, cost an error and no more. */
static void endings(struct end *a, struct end *b)
{
	struct end ours = *a, theirs = *b;
	CUdeviceptr memory;

	for (int turn = 0; turn < 6; turn++) {
		struct end *freed = turn < 3 ? &theirs : &ours;

		NEED(cuMemAlloc_v2(&memory, 1 << 20) == 0);
		freed->memory = (char *)memory;
		NEED((freed->mr = ibv_reg_mr(pd, freed->memory, 1 << 20, ALL)));
		if (turn % 3 == 2)
			post_receive(&theirs, 4, 0, 300000);
		if (turn == 1)
			NEED(ibv_dereg_mr(freed->mr) == 0);
		NEED(cuMemFree_v2(memory) == 0);
		enum ibv_wr_opcode kinds[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };

		NEED(post(&ours, kinds[turn % 3], 5, 0, 300000, &theirs, 0, IBV_SEND_SIGNALED) == 0);
		ended(&ours,
		      turn >= 3 ? IBV_WC_LOC_PROT_ERR :
		      turn == 2 ? IBV_WC_REM_OP_ERR :
				  IBV_WC_REM_ACCESS_ERR,
		      0);
		if (turn == 2)
			ended(&theirs, IBV_WC_LOC_PROT_ERR, 0);
		if (turn != 1)
			NEED(ibv_dereg_mr(freed->mr) == 0);
		ours = *a;
		theirs = *b;
		reconnect_ends(a, b);
	}
	exchange(a, b, 100000, 3);
}

static struct ibv_mr *registered(CUdeviceptr memory, size_t length)
{
	errno = 0;
	return ibv_reg_mr(pd, (void *)memory, length, ALL);
}

/* Writes to a registration of this memory, and looks at what is there. */
static void serves(struct end *a, struct end *b, CUdeviceptr memory, struct ibv_mr *mr, size_t length)
{
	struct end to = *b;

	NEED(mr);
	to.memory = (char *)memory;
	to.mr = mr;
	exchange(a, &to, length - 2 * EDGE - 64, 5);
	CHECK(ibv_dereg_mr(mr) == 0);
}

/* A context that is not this thread's, with memory. */
static CUcontext made(CUdeviceptr *memory)
{
	CUcontext context, popped;

	NEED(cuCtxCreate_v2(&context, 0, fake_view ? 1 : 0) == 0);
	NEED(cuMemAlloc_v2(memory, 300000) == 0 && cuCtxPopCurrent_v2(&popped) == 0);
	return context;
}

/* What is served, and what is refused. */
static void kinds(struct end *a, struct end *b)
{
	struct ibv_mr *mr;
	CUdeviceptr memory;
	CUcontext other;
	int fd;

	NEED(cuMemAlloc_v2(&memory, 1 << 17) == 0);
	CHECK(registered(memory, (1 << 17) + 1) == NULL && errno == EFAULT);
	CHECK_NULL(ibv_reg_mr(pd, (void *)memory, 4096, ALL | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	serves(a, b, memory + 1, registered(memory + 1, 99999), 99999);
	/* Rounded up to a page, as NCCL does; what is behind the memory is no one's. */
	CUdeviceptr odd;

	NEED(cuMemAlloc_v2(&odd, 100003) == 0);
	size_t rounded = ((odd + 100003 + 4095) & ~(CUdeviceptr)4095) - odd;

	CHECK(!fake_view || (registered(odd, rounded + 4096) == NULL && errno == EFAULT));
	serves(a, b, odd, registered(odd, rounded), 100003);
	struct end behind = *b;

	NEED((behind.mr = registered(odd, rounded)));
	behind.memory = (char *)odd;
	if (fake_view) {
		NEED(post(a, IBV_WR_RDMA_WRITE, 5, 0, rounded, &behind, 0, IBV_SEND_SIGNALED) == 0);
		ended(a, IBV_WC_REM_ACCESS_ERR, 0);
		reconnect_ends(a, b);
	}
	serves(a, b, odd, behind.mr, 100003);
	/* The registration of a DMA-BUF, which cannot be mapped, is that of the device's address. */
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EBADF);
	NEED(cuMemGetHandleForAddressRange(&fd, memory, 1 << 17, 1, 0) == 0);
	serves(a, b, memory, ibv_reg_dmabuf_mr(pd, 0, 1 << 17, memory, fd, ALL), 1 << 17);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 1 << 17, 4096, fd, ALL), EINVAL);
	close(fd);
	/* The key stays, and the memory changes. */
	NEED((mr = registered(memory, 1 << 17)));
	NEED(cuMemAlloc_v2(&memory, 50000) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)memory, 50000, 0) == 0);
	serves(a, b, memory, mr, 50000);

	NEED(cuMemAllocAsync(&memory, 70000, own) == 0 && cuStreamSynchronize(own) == 0);
	serves(a, b, memory, registered(memory, 70000), 70000);
	NEED(cuMemAllocManaged(&memory, 80000, 1) == 0);
	serves(a, b, memory, registered(memory, 80000), 80000);
	if (fake_view) {
		fake_concurrent(0);
		CHECK(registered(memory, 80000) == NULL && errno == EOPNOTSUPP);
		fake_concurrent(1);
		NEED(fake_mapped(&memory, 65536) == 0);
		serves(a, b, memory + 60000, registered(memory + 60000, 5536), 5536);
		CHECK(registered(memory, 2 * 65536 + 1) == NULL && errno == EFAULT);
		int retained = fake_retained(0);

		NEED((mr = registered(memory, 2 * 65536)) && ibv_dereg_mr(mr) == 0);
		CHECK(fake_retained(0) == retained);
		NEED(fake_array(&memory, 4096) == 0);
		CHECK(registered(memory, 4096) == NULL && errno == EOPNOTSUPP);
	}

	/* Another context, with the stand-in of another device, which ends. */
	other = made(&memory);
	serves(a, b, memory, registered(memory, 300000), 300000);
	struct end to = *b;

	NEED((to.mr = registered(memory, 300000)));
	to.memory = (char *)memory;
	NEED(cuCtxDestroy_v2(other) == 0);
	NEED(post(a, IBV_WR_RDMA_WRITE, 5, 0, 300000, &to, 0, IBV_SEND_SIGNALED) == 0);
	ended(a, IBV_WC_REM_ACCESS_ERR, 0);
	CHECK(ibv_dereg_mr(to.mr) == 0);
	reconnect_ends(a, b);
	/* Contexts that end unnoticed; the stand-in gives each the handle of the last. */
	for (int turn = 0; turn < 2; turn++) {
		CUcontext again = made(&memory);

		CHECK(!fake_view || again == other);
		serves(a, b, memory, registered(memory, 300000), 300000);
		NEED(cuCtxDestroy_v2(again) == 0);
	}
}

/* The child of a program has none of its memory, and costs it nothing. */
static void forks(struct end *a, struct end *b)
{
	int status = 0;
	pid_t child = fork();

	NEED(child >= 0);
	if (!child)
		_exit(ibv_dereg_mr(a->mr) == 0 ? 0 : 1);
	exchange(a, b, 700000, 8);
	NEED(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *accepts(void *argument)
{
	struct rdma_cm_id **ids = argument;
	struct rdma_conn_param parameters = { .responder_resources = 4, .initiator_depth = 4 };

	NEED(rdma_accept(ids[1], &parameters) == 0);
	return NULL;
}

/* Two ends that librdmacm connects. */
static void connect_ids(struct end *a, struct end *b)
{
	struct sockaddr_storage here = address_of("127.0.0.1", 7171);
	struct rdma_conn_param parameters = { .responder_resources = 4, .initiator_depth = 4, .retry_count = 7 };
	struct rdma_cm_id *ids[3];
	struct end *ends[] = { a, b };
	pthread_t thread;

	raise_lo();
	NEED(rdma_create_id(NULL, &ids[2], NULL, RDMA_PS_TCP) == 0 && rdma_create_id(NULL, &ids[0], NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(ids[2], (struct sockaddr *)&here) == 0 && rdma_listen(ids[2], 1) == 0);
	NEED(resolve_addr(ids[0], "127.0.0.1", 7171) == 0 && rdma_resolve_route(ids[0], 2000) == 0);
	context = ids[0]->verbs;
	CHECK(context->device->transport_type == IBV_TRANSPORT_IWARP);
	NEED((pd = ibv_alloc_pd(context)));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
				 .max_inline_data = 128 },
			.qp_type = IBV_QPT_RC,
		};

		NEED((ends[i]->cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
		init.send_cq = init.recv_cq = ends[i]->cq;
		if (i == 1)
			NEED(rdma_get_request(ids[2], &ids[1]) == 0);
		NEED(rdma_create_qp(ids[i], pd, &init) == 0);
		ends[i]->qp = ids[i]->qp;
		NEED((ends[i]->memory = aligned_alloc(4096, ROOM)));
		NEED((ends[i]->mr = ibv_reg_mr(pd, ends[i]->memory, ROOM, ALL)));
		if (i == 0) {
			/* The request leaves without an answer. */
			NEED(rdma_migrate_id(ids[0], rdma_create_event_channel()) == 0);
			NEED(rdma_connect(ids[0], &parameters) == 0);
		}
	}
	NEED(pthread_create(&thread, NULL, accepts, ids) == 0);
	rdma_ack_cm_event(next_event(ids[0]->channel, RDMA_CM_EVENT_ESTABLISHED));
	NEED(pthread_join(thread, NULL) == 0);
}

/* The calls of the library left the thread's contexts as they were, and copied pinned memory only. */
static void check_calls(void)
{
	CHECK(!fake_view || (fake_depth() == 1 && fake_count().pageable == 0));
}

int main(void)
{
	struct end a = {}, b = {};
	void *barred = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t most = getenv("SHORT") ? 6 << 20 : MOST;

	iwarp = getenv("IWARP") != NULL;
	if (iwarp)
		connect_ids(&a, &b);
	else
		open_pair(&a, &b);
	CHECK_NULL(ibv_reg_mr(pd, barred, 4096, ALL), EFAULT);
	load_cuda();
	CHECK_NULL(ibv_reg_mr(pd, barred, 4096, ALL), EFAULT);
	if (getenv("FERROCE_GPU")) {
		CUdeviceptr memory;

		NEED(cuMemAlloc_v2(&memory, 4096) == 0);
		CHECK(registered(memory, 4096) == NULL && errno == EFAULT);
		CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), EOPNOTSUPP);
		CHECK(!fake_count || fake_count().queries == 0);
		return close_pair(&a, &b);
	}
	on_gpu(&a, MOST + 4096);
	on_gpu(&b, MOST + 4096);
	lengths(&a, &b, most);
	/* Host memory at one end. */
	struct end host_out = a, host_in = b;

	host_out.memory = host_in.memory = malloc(1 << 20);
	NEED((host_out.mr = host_in.mr = ibv_reg_mr(pd, host_in.memory, 1 << 20, ALL)));
	lengths(&host_out, &b, 600000);
	lengths(&a, &host_in, 600000);
	if (iwarp) {
		streams(&a, &b, &host_in);
		check_calls();
		return finish();
	}
	flags(&a, &b, &b, 1);
	flags(&host_out, &b, &b, 1);
	flags(&a, &b, &host_in, 0);
	atomics(&a, &b);
	if (fake_capture)
		fake_capture(1);
	streams(&a, &b, &host_in);
	CHECK(!fake_capture || fake_capture(0) == 0);
	if (!getenv("FERROCE_FAULT")) {
		if (fake_count)
			gathers(&a, &b);
		unreliable(&a, &b, IBV_QPT_UD);
		unreliable(&a, &b, IBV_QPT_UC);
	}
	windows(&a, &b);
	endings(&a, &b);
	kinds(&a, &b);
	forks(&a, &b);
	check_calls();
	CHECK(ibv_dereg_mr(host_in.mr) == 0);
	a.memory = b.memory = (free(host_in.memory), NULL);
	return close_pair(&a, &b);
}
