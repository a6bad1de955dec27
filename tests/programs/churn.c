/*
 * churn: everything created and destroyed COUNT times, as a server does that lives for years.
 *
 *   churn [-d DEV] COUNT
 *
 * Descriptors and resident memory may not grow from the first tenth of the rounds to the last.
 */
#include "pair.h"

#include <dirent.h>

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	if (!dir) die("/proc/self/fd");
	while (readdir(dir)) n++;
	closedir(dir);
	return n;
}

static long resident_pages(void)
{
	long size, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2) die("/proc/self/statm");
	fclose(file);
	return resident;
}

int main(int argc, char **argv)
{
	int first = options(argc, argv), fds = 0;
	if (first >= argc) { fprintf(stderr, "churn: COUNT\n"); return 2; }
	long count = atol(argv[first]), pages = 0;
	static char memory[8192];
	open_device();
	for (long i = 0; i < count; i++) {
		if (i == count / 10) { fds = descriptors(); pages = resident_pages(); }
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_cq *another = ibv_create_cq(context, 64, NULL, channel, 0);
		create_qp();
		if (!mr || !another) die("create");
		if (i % 2) {	/* half of them with receives posted, which are flushed or dropped */
			struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
			if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("INIT");
			post_recv(1, memory, sizeof memory, mr->lkey);
		}
		if (ibv_dealloc_pd(pd) != EBUSY) { fprintf(stderr, "a PD in use was deallocated\n"); return 1; }
		if ((errno = ibv_destroy_qp(qp))) die("destroy_qp");
		if ((errno = ibv_destroy_cq(another))) die("destroy_cq");
		if ((errno = ibv_dereg_mr(mr))) die("dereg_mr");
	}
	long grown = resident_pages() - pages;
	printf("%ld rounds, %d descriptors, %+ld pages\n", count, descriptors(), grown);
	if (descriptors() > fds) { fprintf(stderr, "descriptors grew from %d to %d\n", fds, descriptors()); return 1; }
	if (grown > 256) { fprintf(stderr, "memory grew by %ld pages\n", grown); return 1; }
	if ((errno = ibv_destroy_cq(cq)) || (errno = ibv_destroy_comp_channel(channel)) || (errno = ibv_dealloc_pd(pd)) ||
	    (errno = ibv_close_device(context))) die("close");
	return 0;
}
