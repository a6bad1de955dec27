/* Work requests and lists at addresses that are no multiple of 8, as in packed structures (libiscsi has a list at offset
 * 204 of one). The processor permits such reads, so every library accepts them. */
#include "pair.h"

#include <endian.h>

enum { PIECES = 3, LENGTH = PIECES * 10 };

static struct end a, b;

/* Buffers for the posted structures; an offset of `shift` octets misaligns them. */
struct place {
	char room[256] __attribute__((aligned(16)));
};

static struct place receive_list, send_list, first_receive, second_receive, first_send, second_send;

static void *put(struct place *place, int shift, const void *what, size_t size)
{
	NEED(shift + size <= sizeof(place->room));
	return memcpy(place->room + shift, what, size);
}

/* Elements of ten octets, one every hundred octets from `at` on. */
static struct ibv_sge *list(struct place *place, int shift, const struct end *end, size_t at)
{
	struct ibv_sge sges[PIECES];

	for (int i = 0; i < PIECES; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)end->memory + at + 100 * i, 10, end->mr->lkey };
	return put(place, shift, sges, sizeof(sges));
}

static void fill(int with)
{
	memset(b.memory, 0, 4096);
	for (int i = 0; i < PIECES; i++)
		memset(a.memory + 100 * i, with + i, 10);
}

/* Compares the octets that `a` gathered with those that `b` scattered. */
static int arrived(size_t at, int with)
{
	for (int i = 0; i < LENGTH; i++)
		if (b.memory[at + 100 * (i / 10) + i % 10] != with + i / 10)
			return 0;
	return 1;
}

static void expect(struct end *end, uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t length)
{
	struct ibv_wc wc = next_wc(end);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.opcode == opcode);
	if (opcode & IBV_WC_RECV)
		CHECK(wc.byte_len == length);
}

/* Chains of two of each kind: requests misaligned by `of_requests` octets, lists by `of_lists`. */
static void chains(int of_requests, int of_lists, unsigned int flags)
{
	struct ibv_sge *to = list(&receive_list, of_lists, &b, 0), *from = list(&send_list, of_lists, &a, 0);
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = to, .num_sge = PIECES }, *bad_receive = NULL;
	struct ibv_send_wr send = { .wr_id = 4, .sg_list = from, .num_sge = PIECES, .opcode = IBV_WR_SEND_WITH_IMM,
				    .send_flags = flags, .imm_data = htobe32(7) }, *bad_send = NULL;

	fill('a' + of_lists);
	receive.next = put(&second_receive, of_requests, &receive, sizeof(receive));
	receive.wr_id = 1;
	CHECK(ibv_post_recv(b.qp, put(&first_receive, of_requests, &receive, sizeof(receive)), &bad_receive) == 0);
	send.next = put(&second_send, of_requests, &send, sizeof(send));
	send.wr_id = 3;
	CHECK(ibv_post_send(a.qp, put(&first_send, of_requests, &send, sizeof(send)), &bad_send) == 0);
	for (int i = 0; i < 2; i++) {
		expect(&b, 1 + i, IBV_WC_RECV, LENGTH);
		expect(&a, 3 + i, IBV_WC_SEND, 0);
	}
	CHECK(arrived(0, 'a' + of_lists));

	/* The call returns the refused request, aligned or not. */
	send.send_flags = 1u << 30;
	send.next = NULL;
	struct ibv_send_wr *wrong = put(&first_send, of_requests, &send, sizeof(send));

	CHECK(ibv_post_send(a.qp, wrong, &bad_send) == EINVAL && bad_send == wrong);
}

static void built_by_functions(int shift)
{
	struct ibv_data_buf parts[2] = { { .addr = "split ", .length = 6 }, { .addr = "inline", .length = 7 } };

	fill('A' + shift);
	post_receive(&b, 10, 1000, 64);
	post_receive(&b, 11, 2000, 64);
	ibv_wr_start(a.qpx);
	a.qpx->wr_id = 20;
	a.qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(a.qpx);
	ibv_wr_set_sge_list(a.qpx, PIECES, list(&send_list, shift, &a, 0));
	a.qpx->wr_id = 21;
	ibv_wr_send(a.qpx);
	ibv_wr_set_inline_data_list(a.qpx, 2, put(&receive_list, shift, parts, sizeof(parts)));
	CHECK(ibv_wr_complete(a.qpx) == 0);
	expect(&b, 10, IBV_WC_RECV, LENGTH);
	expect(&b, 11, IBV_WC_RECV, 13);
	expect(&a, 20, IBV_WC_SEND, 0);
	expect(&a, 21, IBV_WC_SEND, 0);
	for (int i = 0; i < LENGTH; i++)
		CHECK(b.memory[1000 + i] == 'A' + shift + i / 10);
	CHECK(!strcmp(b.memory + 2000, "split inline"));
}

/* The same for a shared receive queue. */
static void shared(int shift)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = PIECES } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = list(&receive_list, shift, &b, 0), .num_sge = PIECES }, *bad = NULL;

	NEED(srq);
	receive.next = put(&second_receive, shift, &receive, sizeof(receive));
	receive.wr_id = 1;
	CHECK(ibv_post_srq_recv(srq, put(&first_receive, shift, &receive, sizeof(receive)), &bad) == 0);
	receive.num_sge = PIECES + 1;
	receive.next = NULL;
	CHECK(ibv_post_srq_recv(srq, put(&first_receive, shift, &receive, sizeof(receive)), &bad) == EINVAL);
	CHECK((void *)bad == first_receive.room + shift);
	CHECK(ibv_destroy_srq(srq) == 0);
}

int main(void)
{
	open_pair(&a, &b);
	for (int shift = 0; shift <= 8; shift++) {
		chains(0, shift, IBV_SEND_SIGNALED);
		chains(shift, 0, IBV_SEND_SIGNALED);
		chains(shift, 8 - shift, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
		built_by_functions(shift);
		shared(shift);
	}
	free_end(&a);
	free_end(&b);
	return finish();
}
