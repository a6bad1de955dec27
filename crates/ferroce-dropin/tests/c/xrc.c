/* XRC: domains and refused arguments, a target opened twice, queues by number, and the order of destruction. */
#include "pair.h"

#include <fcntl.h>

static struct end a;

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags,
	};

	return ibv_open_xrcd(context, &init);
}

static void domains_and_files(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	char path[] = "/tmp/ferroce-xrc-XXXXXX";
	int fd = mkstemp(path), again = open(path, O_RDONLY | O_CLOEXEC);

	NEED(fd >= 0 && again >= 0);
	unlink(path);
	CHECK_NULL(ibv_open_xrcd(context, NULL), EINVAL);
	CHECK_NULL(ibv_open_xrcd(context, &init), EINVAL);
	init.comp_mask = 7;
	CHECK_NULL(ibv_open_xrcd(context, &init), EOPNOTSUPP);
	CHECK_NULL(open_domain(12345, O_CREAT), EBADF);
	CHECK_NULL(open_domain(-2, O_CREAT), EBADF);
	CHECK_NULL(open_domain(-1, O_CREAT | O_APPEND), EINVAL);
	CHECK_NULL(open_domain(fd, 0), EAGAIN);
	struct ibv_xrcd *first = open_domain(fd, O_CREAT | O_EXCL), *second;

	NEED(first);
	CHECK(first->context == context);
	CHECK_NULL(open_domain(again, O_CREAT | O_EXCL), EINVAL);
	second = open_domain(again, 0);
	NEED(second && second != first);
	close(fd);
	CHECK(ibv_close_xrcd(first) == 0);
	CHECK(ibv_close_xrcd(first) == EINVAL);
	CHECK(ibv_close_xrcd(second) == 0);
	CHECK_NULL(open_domain(again, 0), EAGAIN);
	close(again);
}

static struct ibv_qp *make_target(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target;

	attr.comp_mask = 0;
	CHECK_NULL(ibv_create_qp_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	attr.xrcd = NULL;
	CHECK_NULL(ibv_create_qp_ex(context, &attr), EINVAL);
	attr.xrcd = xrcd;
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK_NULL(ibv_create_qp_ex(context, &attr), EOPNOTSUPP);
	attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	target = ibv_create_qp_ex(context, &attr);
	NEED(target);
	CHECK(target->qp_num && !target->pd && !target->send_cq && !target->recv_cq);
	return target;
}

static struct ibv_srq *make_queue(struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 8, .max_sge = 1 },
		.srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD,
		.pd = pd,
		.xrcd = xrcd,
		.cq = a.cq,
	};
	struct ibv_srq *srq;

	CHECK_NULL(ibv_create_srq_ex(context, &init), EINVAL); /* no completion queue */
	init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
	srq = ibv_create_srq_ex(context, &init);
	NEED(srq);
	return srq;
}

static void an_exchange(void)
{
	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_qp *target = make_target(xrcd), *opened;
	struct ibv_srq *srq = make_queue(xrcd);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = a.cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 77, .max_send_sge = 1, .max_inline_data = 64 },
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = target->qp_num, .xrcd = xrcd, .qp_context = &a, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *initiator = ibv_create_qp_ex(context, &attr);
	struct ibv_qp_ex *extended;
	struct end end = a;
	struct ibv_recv_wr recv = {}, *bad_recv;
	uint32_t number = 0;

	NEED(initiator && xrcd);
	CHECK(attr.cap.max_recv_wr == 0);
	open_attr.qp_num = initiator->qp_num;
	CHECK_NULL(ibv_open_qp(context, &open_attr), EINVAL);
	open_attr.qp_num = target->qp_num;
	open_attr.qp_type = IBV_QPT_RC;
	CHECK_NULL(ibv_open_qp(context, &open_attr), EINVAL);
	open_attr.qp_type = IBV_QPT_XRC_RECV;
	opened = ibv_open_qp(context, &open_attr);
	NEED(opened && opened != target);
	CHECK(opened->qp_num == target->qp_num && opened->qp_context == &a);

	end.qp = initiator;
	to_rts(&end, target->qp_num);
	end.qp = opened; /* either handle works */
	to_rts(&end, initiator->qp_num);
	CHECK(ibv_post_recv(target, &recv, &bad_recv) == EINVAL);
	CHECK(ibv_post_recv(initiator, &recv, &bad_recv) == EINVAL);
	CHECK(ibv_get_srq_num(srq, &number) == 0);

	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	recv.sg_list = &sge;
	recv.num_sge = 1;
	for (recv.wr_id = 1; recv.wr_id <= 3; recv.wr_id++)
		CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	CHECK(ibv_post_send(target, &wr, &bad) == EINVAL);
	wr.qp_type.xrc.remote_srqn = number;
	CHECK(ibv_post_send(initiator, &wr, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_wc(&a);

		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV)
			CHECK(wc.wr_id == 1 && wc.qp_num == target->qp_num && wc.byte_len == 64);
		else
			CHECK(wc.wr_id == 5 && wc.qp_num == initiator->qp_num);
	}
	/* The number may be set before the data or after it; a request without a number is refused whole. */
	extended = ibv_qp_to_qp_ex(initiator);
	NEED(extended);
	ibv_wr_start(extended);
	extended->wr_id = 6;
	extended->wr_flags = 0;
	ibv_wr_send(extended);
	ibv_wr_set_xrc_srqn(extended, number);
	ibv_wr_set_sge(extended, a.mr->lkey, (uintptr_t)a.memory, 8);
	ibv_wr_send(extended);
	ibv_wr_set_sge(extended, a.mr->lkey, (uintptr_t)a.memory, 9);
	ibv_wr_set_xrc_srqn(extended, number);
	CHECK(ibv_wr_complete(extended) == 0);
	CHECK(next_wc(&a).byte_len == 8);
	CHECK(next_wc(&a).byte_len == 9);
	ibv_wr_start(extended);
	ibv_wr_send(extended);
	ibv_wr_set_sge(extended, a.mr->lkey, (uintptr_t)a.memory, 8);
	CHECK(ibv_wr_complete(extended) == EINVAL);

	CHECK(ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(ibv_destroy_qp(target) == 0);
	CHECK(ibv_destroy_qp(target) == EINVAL);
	wr.qp_type.xrc.remote_srqn = number ^ 1; /* nobody's: the other holder's target refuses */
	CHECK(ibv_post_send(initiator, &wr, &bad) == 0);
	CHECK(next_wc(&a).status == IBV_WC_REM_INV_REQ_ERR);

	struct ibv_async_event event;
	int seen = 0;

	NEED(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
	while (ibv_get_async_event(context, &event) == 0) {
		if (event.event_type == IBV_EVENT_QP_ACCESS_ERR || event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
			CHECK(event.element.qp == opened);
			seen++;
		}
		ibv_ack_async_event(&event);
	}
	CHECK(seen == 2);
	CHECK(ibv_destroy_qp(opened) == 0);
	CHECK_NULL(ibv_open_qp(context, &open_attr), EINVAL);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(ibv_destroy_qp(initiator) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_xrcd(xrcd) == 0);
}

int main(void)
{
	struct ibv_device_attr device;

	open_pd();
	CHECK(ibv_query_device(context, &device) == 0 && (device.device_cap_flags & IBV_DEVICE_XRC));
	a = make_end();
	domains_and_files();
	an_exchange();
	free_end(&a);
	return close_pd();
}
