/* Names and rates. The test runs it with Debian's library and with ours, and compares the outputs. */
#include "check.h"

#include <infiniband/umad_str.h>
#include <rdma/rdma_cma.h>

const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

int main(void)
{
	for (int i = -1; i < 12; i++)
		printf("node type %d: %s\n", i, ibv_node_type_str(i));
	for (int i = -1; i < 10; i++)
		printf("port state %d: %s\n", i, ibv_port_state_str(i));
	for (int i = -1; i < 30; i++)
		printf("event %d: %s\n", i, ibv_event_type_str(i));
	for (int i = -1; i < 30; i++)
		printf("status %d: %s\n", i, ibv_wc_status_str(i));
	for (int i = -1; i < 30; i++)
		printf("rate %d: %d x 2.5 Gb/s, %d Mb/s\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = -1; i < 600; i++)
		printf("%d x 2.5 Gb/s: rate %d\n", i, mult_to_ibv_rate(i));
	for (int i = -1; i < 1300000; i++)
		if (mbps_to_ibv_rate(i))
			printf("%d Mb/s: rate %d\n", i, mbps_to_ibv_rate(i));
	for (int i = -1; i < 16; i++)
		printf("CM event %d: %s\n", i, rdma_event_str(i));
	printf("sysfs %s\n", ibv_get_sysfs_path());
	for (int class = 0; class < 256; class++) {
		printf("MAD class %d: %s\n", class, umad_class_str(class));
		for (int i = 0; i < 256; i++)
			if (umad_method_str(class, i)[0] != '<')
				printf("MAD %d method %d: %s\n", class, i, umad_method_str(class, i));
		for (int i = 0; i < 0x10000; i++) {
			const char *name = umad_attribute_str(class, htobe16(i));

			if (name[0] != '<')
				printf("MAD %d attribute %d: %s\n", class, i, name);
		}
	}
	for (int i = 0; i < 0x10000; i += i < 0x200 ? 1 : 0x33)
		printf("MAD status %d: %s, %s\n", i, umad_common_mad_status_str(htobe16(i)),
		       umad_sa_mad_status_str(htobe16(i)));

	static const char *const files[][2] = {
		{ "/proc", "version" },		   { "/proc/sys/kernel", "ostype" },	{ "/proc", "nonsense" },
		{ "/proc//sys", "/kernel/ostype" }, { "/proc/sys", "../sys/kernel/ostype" }, { "/proc", "version/" },
		{ "/proc", "version/nonsense" },   { "/proc", "sys" },			{ "/dev", "null" },
		{ "", "proc/sys/kernel/ostype" },  { "/proc/version", "" },
	};

	for (unsigned int i = 0; i < sizeof(files) / sizeof(*files); i++)
		/* "Linux" and its newline are six octets. */
		for (size_t size = 1; size <= 8; size++) {
			char text[9];

			memset(text, '#', sizeof(text));
			errno = 0;
			int length = ibv_read_sysfs_file(files[i][0], files[i][1], text, size);

			printf("%s/%s in %zu: %d, errno %d, ", files[i][0], files[i][1], size, length,
			       /* Debian's library does not document errno
			        * for a buffer that is too small. */
			       length < 0 && errno != ENOMEM ? errno : 0);
			for (unsigned int k = 0; k < sizeof(text); k++)
				printf(" %02x", (unsigned char)text[k]);
			printf("\n");
		}
	return 0;
}
