/* Connection management and management datagrams are not built yet: every call is there and says so. */
#include "check.h"

#include <infiniband/umad.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define CHECK_NEGATIVE(call)                                                                     \
	do {                                                                                     \
		CHECK((call) == -EOPNOTSUPP);                                                    \
	} while (0)

int main(void)
{
	struct rdma_cm_id *id = NULL;
	struct rdma_cm_event *event = NULL;
	struct rdma_addrinfo *info = NULL;
	struct sockaddr address = {};
	int count = 7;
	umad_ca_t ca = {};

	CHECK_NULL(rdma_create_event_channel(), EOPNOTSUPP);
	CHECK_NULL(rdma_get_devices(&count), EOPNOTSUPP);
	CHECK(count == 0);
	CHECK_MINUS(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), EOPNOTSUPP);
	CHECK_MINUS(rdma_get_cm_event(NULL, &event), EOPNOTSUPP);
	CHECK_MINUS(rdma_resolve_addr(NULL, NULL, &address, 1), EOPNOTSUPP);
	CHECK_MINUS(rdma_getaddrinfo("localhost", "1", NULL, &info), EOPNOTSUPP);
	CHECK_MINUS(rdma_listen(NULL, 1), EOPNOTSUPP);
	rdma_destroy_event_channel(NULL);
	rdma_free_devices(NULL);
	rdma_freeaddrinfo(NULL);
	CHECK_MINUS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	CHECK(rrecv(3, &address, 1, 0) == -1);
	CHECK_MINUS(rclose(3), EOPNOTSUPP);

	CHECK_NEGATIVE(umad_init());
	CHECK_NEGATIVE(umad_open_port("fr0", 1));
	CHECK_NEGATIVE(umad_get_ca("fr0", &ca));
	CHECK_NEGATIVE(umad_get_fd(0));
	CHECK(umad_get_cas_names(NULL, 0) == 0);
	CHECK_NULL(umad_get_ca_device_list(), EOPNOTSUPP);
	umad_free_ca_device_list(NULL);
	return finish();
}
