/* Multicast groups of ids, rsockets and management datagrams are not built yet: every call is there and says so. */
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
	struct sockaddr address = {};

	CHECK_MINUS(rdma_join_multicast(NULL, &address, NULL), EOPNOTSUPP);
	CHECK_MINUS(rdma_leave_multicast(NULL, &address), EOPNOTSUPP);
	CHECK_MINUS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	CHECK(rrecv(3, &address, 1, 0) == -1);
	CHECK_MINUS(rclose(3), EOPNOTSUPP);

	CHECK_NEGATIVE(umad_open_port("fr0", 1));
	CHECK_NEGATIVE(umad_get_fd(0));
	return finish();
}
