/* ibv_read_sysfs_file without sysfs files: the library generates those of our device. */
#include "pair.h"

#include <sys/stat.h>

/* Only the providers' header declares it, and that is not installed. */
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static char text[128];

/* Reads a file; returns its length, or -1. */
static int reads(const char *dir, const char *file)
{
	memset(text, '#', sizeof(text));
	errno = 0;
	return ibv_read_sysfs_file(dir, file, text, sizeof(text));
}

static int says(const char *dir, const char *file, const char *want)
{
	int length = reads(dir, file);

	if (length >= 0 && (size_t)length == strlen(want) && !strcmp(text, want))
		return 1;
	fprintf(stderr, "%s/%s: %d '%.*s'\n", dir, file, length, length < 0 ? 0 : length, text);
	return 0;
}

static unsigned long long number(const char *file)
{
	NEED(reads(context->device->ibdev_path, file) > 0);
	return strtoull(text, NULL, 10);
}

static void as_quads(const uint8_t *octets, int count, char *to)
{
	for (int i = 0; i < count; i += 2)
		to += sprintf(to, "%s%02x%02x", i ? ":" : "", octets[i], octets[i + 1]);
}

static void identity(void)
{
	const char *device = context->device->ibdev_path, *verbs = context->device->dev_path;
	__be64 guid = ibv_get_device_guid(context->device);
	struct ibv_device_attr attr;
	char want[64];

	NEED(!ibv_query_device(context, &attr));
	as_quads((uint8_t *)&guid, 8, want);
	CHECK(says(device, "node_guid", want));
	CHECK(says(device, "sys_image_guid", want));
	CHECK(says(device, "fw_ver", attr.fw_ver));
	CHECK(says(device, "node_type", "1: CA"));
	CHECK(says(device, "parent", "lo"));
	CHECK(says(verbs, "ibdev", "fr0"));
	CHECK(says("/sys/class/infiniband_verbs", "abi_version", "6"));
	CHECK(says("/sys/class/infiniband_mad/umad0", "ibdev", "fr0"));
	CHECK(says("/sys/class/infiniband_mad/umad0", "port", "1"));
	/* From the mount point on, as ibv_devinfo and others do. */
	CHECK(says(ibv_get_sysfs_path(), "class/infiniband/fr0/ports/1/link_layer", "Ethernet"));
}

static void port(void)
{
	const char *device = context->device->ibdev_path;
	struct ibv_port_attr attr;
	int used = 0;

	NEED(!ibv_query_port(context, 1, &attr));
	CHECK(says(device, "ports/1/state", "4: ACTIVE"));
	CHECK(says(device, "ports/1/phys_state", "5: LinkUp"));
	CHECK(says(device, "ports/1/rate", "100 Gb/sec (4X EDR)"));
	CHECK(says(device, "ports/1/pkeys/0", "0xffff"));
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;
		char file[64], want[64];
		union ibv_gid gid;

		NEED(!ibv_query_gid(context, 1, i, &gid));
		as_quads(gid.raw, 16, want);
		sprintf(file, "ports/1/gids/%d", i);
		CHECK(says(device, file, want));
		int is = !ibv_query_gid_ex(context, 1, i, &entry, 0);

		used += is;
		for (int name = 0; name < 2; name++) {
			sprintf(file, "ports/1/gid_attrs/%s/%d", name ? "ndevs" : "types", i);
			if (is)
				CHECK(says(device, file, name ? "lo" : "RoCE v2"));
			else
				CHECK_MINUS(reads(device, file), EINVAL);
		}
	}
	CHECK(used >= 1);
}

static void paths(void)
{
	const char *device = context->device->ibdev_path;

	CHECK(says("//sys/class//infiniband/fr0/", "/ports//1/lid", "0x0"));
	CHECK(says(device, "../fr0/./ports/1/../../node_type", "1: CA"));
	CHECK(says("/sys/class/infiniband_verbs/..", "infiniband/fr0/node_type", "1: CA"));
	CHECK(says(device, "subsystem/fr0/node_type", "1: CA"));
	CHECK_MINUS(reads(device, "board_id"), ENOENT);
	CHECK_MINUS(reads(device, ""), EISDIR);
	CHECK_MINUS(reads(device, "ports/1/gids"), EISDIR);
	CHECK_MINUS(reads(device, "ports/1/gids/1024"), ENOENT);
	CHECK_MINUS(reads(device, "ports/1/hw_counters/nonsense"), ENOENT);
	CHECK_MINUS(reads(device, "ports/2/state"), ENOENT);
	CHECK_MINUS(reads(device, "node_type/"), ENOTDIR);
	CHECK_MINUS(reads(device, "node_type/../node_type"), ENOTDIR);
	CHECK_MINUS(reads("/sys/class/infiniband/mlx5_0", "node_guid"), ENOENT);
	CHECK_MINUS(reads("/nonsense/infiniband/fr0", "node_guid"), ENOENT);
	CHECK_MINUS(reads("sys/class/infiniband/fr0", "node_guid"), ENOENT);
	CHECK_MINUS(reads("", "nonsense"), ENOENT);
	CHECK_MINUS(reads("/sys/class/infiniband/\xff", "node_guid"), ENOENT);
	/* Existing files are read from the file system. */
	CHECK(says("/proc/sys/kernel", "ostype", "Linux"));
	/* "1: CA" and its newline are six octets. */
	memset(text, '#', sizeof(text));
	CHECK(ibv_read_sysfs_file(device, "node_type", text, 6) == 5 && !memcmp(text, "1: CA\0#", 7));
	CHECK_MINUS(ibv_read_sysfs_file(device, "node_type", text, 5), ENOMEM);
	CHECK_MINUS(ibv_read_sysfs_file(device, "node_type", text, 0), EINVAL);
	CHECK_MINUS(ibv_read_sysfs_file(NULL, "node_type", text, 4), EINVAL);
	CHECK_MINUS(ibv_read_sysfs_file(device, NULL, text, 4), EINVAL);
	CHECK_MINUS(ibv_read_sysfs_file(device, "node_type", NULL, 4), EINVAL);
}

/* Files that lie there, as those of `ferroce run --sysfs`: an empty one is refused where the kernel refuses it. */
static void mounted(void)
{
	char at[] = "/tmp/ferroce-files-XXXXXX", path[128];
	const char *parts[] = { "", "/infiniband", "/infiniband/gid_attrs", "/infiniband/gid_attrs/types" };

	NEED(mkdtemp(at));
	for (int i = 1; i < 4; i++)
		NEED(snprintf(path, sizeof(path), "%s%s", at, parts[i]) > 0 && mkdir(path, 0700) == 0);
	for (int full = 0; full < 2; full++) {
		NEED(snprintf(path, sizeof(path), "%s%s/%d", at, parts[3], full) > 0);
		FILE *file = fopen(path, "w");

		NEED(file && (!full || fputs("RoCE v2\n", file) >= 0) && fclose(file) == 0);
	}
	NEED(snprintf(path, sizeof(path), "%s%s", at, parts[3]) > 0);
	CHECK_MINUS(reads(path, "0"), EINVAL);
	CHECK(says(path, "1", "RoCE v2"));
	for (int i = 0; i < 2; i++)
		NEED(snprintf(path, sizeof(path), "%s%s/%d", at, parts[3], i) > 0 && unlink(path) == 0);
	for (int i = 4; i-- > 0;)
		NEED(snprintf(path, sizeof(path), "%s%s", at, parts[i]) > 0 && rmdir(path) == 0);
}

static void counters(void)
{
	unsigned long long sent = number("ports/1/hw_counters/sent_pkts");
	unsigned long long octets = number("ports/1/counters/port_xmit_data");
	struct end one = make_end(), two = make_end();

	connect_ends(&one, &two);
	post_receive(&two, 1, 0, 4096);
	CHECK(post(&one, IBV_WR_SEND, 2, 0, 4096, &two, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&one).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&two).status == IBV_WC_SUCCESS);
	/* Four packets of 1024 octets; the counter includes them when they were sent. */
	CHECK(number("ports/1/hw_counters/sent_pkts") >= sent + 4);
	CHECK(number("ports/1/counters/port_xmit_data") >= octets + 4096 / 4);
	CHECK(number("ports/1/hw_counters/lifespan") > 0);
	CHECK(says(context->device->ibdev_path, "ports/1/cm_rx_msgs/req", "0"));
	CHECK(says(context->device->ibdev_path, "ports/1/hw_counters/link_downed", "0"));
	free_end(&one);
	free_end(&two);
}

/* Files show an interface's state after the library noticed the change. */
static void changes(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	NEED(fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &request));
	alarm(30);
	do
		NEED(reads(context->device->ibdev_path, "ports/1/state") > 0);
	while (strcmp(text, "1: DOWN") && !usleep(10000));
	alarm(0);
	CHECK(says(context->device->ibdev_path, "ports/1/phys_state", "3: Disabled"));
	raise_lo();
	alarm(30);
	do
		NEED(reads(context->device->ibdev_path, "ports/1/state") > 0);
	while (strcmp(text, "4: ACTIVE") && !usleep(10000));
	alarm(0);
	close(fd);
}

int main(void)
{
	open_pd();
	identity();
	port();
	paths();
	mounted();
	counters();
	changes();
	return close_pd();
}
