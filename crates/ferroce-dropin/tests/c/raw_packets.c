/* Raw packet queue pairs and flow steering, on the lo of the test's own network namespace. */
#include "pair.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <sys/syscall.h>

static struct end a, b;
static struct ibv_qp *from, *to;

static struct ibv_qp_init_attr init_of(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RAW_PACKET,
		.sq_sig_all = 1,
	};
}

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = init_of(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	NEED(qp);
	CHECK(qp->qp_type == IBV_QPT_RAW_PACKET);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == EINVAL);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

struct rule {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
	struct ibv_flow_spec_ipv4 ipv4;
	struct ibv_flow_spec_tcp_udp udp;
};

static struct rule rule(void)
{
	struct rule rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(struct rule), .num_of_specs = 3, .port = 1 },
		.eth = {
			.type = IBV_FLOW_SPEC_ETH, .size = sizeof(struct ibv_flow_spec_eth),
			.val = { .dst_mac = { 2, 0, 0, 0, 0, 1 }, .ether_type = htons(0x800) },
			.mask = { .dst_mac = { 255, 255, 255, 255, 255, 255 }, .ether_type = 0xffff },
		},
		.ipv4 = {
			.type = IBV_FLOW_SPEC_IPV4, .size = sizeof(struct ibv_flow_spec_ipv4),
			.val = { .dst_ip = htonl(0xc6336401) },
			.mask = { .dst_ip = 0xffffffff },
		},
		.udp = {
			.type = IBV_FLOW_SPEC_UDP, .size = sizeof(struct ibv_flow_spec_tcp_udp),
			.val = { .dst_port = htons(77) },
			.mask = { .dst_port = 0xffff },
		},
	};

	return rule;
}

static void transmit(uint16_t port)
{
	uint8_t frame[60] = {
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0,
		0x45, 0, 0, 46, 0, 0, 0, 0, 1, 17, 0, 0, 198, 51, 100, 9, 198, 51, 100, 1,
		0, 9, port >> 8, port & 255, 0, 26, 0, 0, 'h', 'i',
	};
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = sizeof(frame), .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = port, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	memcpy(a.memory, frame, sizeof(frame));
	NEED(!ibv_post_send(from, &wr, &bad));
	struct ibv_wc wc = next_wc(&a);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == port && wc.opcode == IBV_WC_SEND);
}

static void frames_are_steered(void)
{
	struct rule asked = rule();
	struct ibv_flow *flow = ibv_create_flow(to, &asked.attr);
	struct ibv_sge sge = { .addr = (uintptr_t)b.memory, .length = 100, .lkey = b.mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(flow);
	CHECK(flow->context == context);
	NEED(!ibv_post_recv(to, &receive, &bad));
	transmit(78);
	transmit(77);
	struct ibv_wc wc = next_wc(&b);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.byte_len == 60 && wc.qp_num == to->qp_num);
	CHECK(!(wc.wc_flags & IBV_WC_GRH) && b.memory[37] == 77 && !memcmp(b.memory, a.memory, 60));
	CHECK(ibv_destroy_qp(to) == EBUSY);
	CHECK(ibv_destroy_flow(flow) == 0);
	CHECK(ibv_destroy_flow(flow) == EINVAL);
}

static void wrong_calls_are_refused(void)
{
	struct rule asked;
	struct ibv_qp_init_attr init = init_of(a.cq);
	struct ibv_device_attr device;

#define REFUSED(change, want)                                                                    \
	do {                                                                                     \
		asked = rule();                                                                  \
		change;                                                                          \
		CHECK_NULL(ibv_create_flow(to, &asked.attr), want);                              \
	} while (0)
	REFUSED(asked.attr.port = 0, EINVAL);
	REFUSED(asked.attr.port = 2, EINVAL);
	REFUSED(asked.attr.comp_mask = 1, EINVAL);
	REFUSED(asked.attr.type = 17, EINVAL);
	REFUSED(asked.attr.type = IBV_FLOW_ATTR_SNIFFER, EINVAL);
	REFUSED(asked.attr.flags = 1 << 7, EINVAL);
	REFUSED(asked.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS, EOPNOTSUPP);
	REFUSED(asked.attr.num_of_specs = 255, EINVAL);
	REFUSED(asked.eth.size = 0, EINVAL);
	REFUSED(asked.eth.size = 39, EINVAL);
	REFUSED(asked.eth.size = 0xffff, EINVAL);
	REFUSED(asked.eth.type = 0x99, EINVAL);
	REFUSED(asked.udp.type = IBV_FLOW_SPEC_GRE, EOPNOTSUPP);
	REFUSED(asked.udp.type = IBV_FLOW_SPEC_UDP | IBV_FLOW_SPEC_INNER, EOPNOTSUPP);
	asked = rule();
	CHECK_NULL(ibv_create_flow(a.qp, &asked.attr), EOPNOTSUPP);
	CHECK_NULL(ibv_create_flow(to, NULL), EINVAL);
	CHECK(ibv_query_device(context, &device) == 0);
	CHECK(device.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
	init.cap.max_send_wr = device.max_qp_wr + 1;
	CHECK_NULL(ibv_create_qp(pd, &init), EINVAL);

	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;

	CHECK(ibv_post_send(from, &wr, &bad) == EINVAL && bad == &wr);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_IP_CSUM };
	CHECK(ibv_post_send(from, &wr, &bad) == EINVAL);
}

/* Without the capability the call fails with EPERM, whatever other rights the program has. */
static void without_the_capability(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	struct ibv_qp_init_attr init = init_of(a.cq);

	NEED(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_NET_RAW);
	NEED(syscall(SYS_capset, &header, data) == 0);
	CHECK_NULL(ibv_create_qp(pd, &init), EPERM);
}

int main(void)
{
	open_pd();
	a = make_end();
	b = make_end();
	from = make(a.cq);
	to = make(b.cq);
	frames_are_steered();
	wrong_calls_are_refused();
	without_the_capability();
	CHECK(ibv_destroy_qp(from) == 0);
	CHECK(ibv_destroy_qp(to) == 0);
	return close_pair(&a, &b);
}
