/* An end in each of two processes, which talk over a pair of sockets. */
#ifndef APART_H
#define APART_H

#include "pair.h"

struct place {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static int talk;
static struct end end;

/* Both processes come here; the place of the other one. */
static inline struct place exchanged(void)
{
	struct place here = { end.qp->qp_num, end.mr->rkey, (uintptr_t)end.memory }, there;

	NEED(write(talk, &here, sizeof(here)) == sizeof(here));
	NEED(read(talk, &there, sizeof(there)) == sizeof(there));
	return there;
}

static inline void tell(void)
{
	NEED(write(talk, "", 1) == 1);
}

static inline void be_told(void)
{
	NEED(read(talk, (char[1]){ 0 }, 1) == 1);
}

/* Posts a WRITE of the end's memory to the other process's, or a READ from there. */
static inline void request(enum ibv_wr_opcode opcode, uint32_t length, const struct place *at)
{
	struct ibv_sge sge = { (uintptr_t)end.memory, length, end.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { at->addr, at->rkey },
	}, *bad;

	NEED(ibv_post_send(end.qp, &wr, &bad) == 0);
}

#endif
