/*
 * iscsi: writes to a disk by iSCSI or iSER, reads it back and compares, by libiscsi's initiator.
 *
 *   iscsi URL
 *
 * URL is `iser://HOST:PORT/TARGET/LUN`, or the same with `iscsi`. Prints the rates of requests one after the other, and
 * "data ok".
 */
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 512, REQUEST = 128 * BLOCK, REQUESTS = 512 };

static struct iscsi_context *context;
static int lun;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void fill(unsigned char *data, int request)
{
	for (int at = 0; at < REQUEST; at++) data[at] = (unsigned char)(request * 31 + at * 7 + (at >> 8));
}

/* The target may be asked before it is set up. */
static void login(const char *text)
{
	for (int tries = 0; tries < 100; tries++) {
		context = iscsi_create_context("iqn.2001-04.test:initiator");
		struct iscsi_url *url = iscsi_parse_full_url(context, text);

		if (!url) break;
		iscsi_set_targetname(context, url->target);
		iscsi_set_session_type(context, ISCSI_SESSION_NORMAL);
		iscsi_set_header_digest(context, ISCSI_HEADER_DIGEST_NONE_CRC32C);
		lun = url->lun;
		if (!iscsi_full_connect_sync(context, url->portal, url->lun)) {
			iscsi_destroy_url(url);
			return;
		}
		fprintf(stderr, "%s\n", iscsi_get_error(context));
		iscsi_destroy_url(url);
		iscsi_destroy_context(context);
		usleep(100 * 1000);
	}
	exit(1);
}

static struct scsi_task *good(struct scsi_task *task, const char *what)
{
	if (!task || task->status != SCSI_STATUS_GOOD) {
		fprintf(stderr, "%s: %s\n", what, iscsi_get_error(context));
		exit(1);
	}
	return task;
}

int main(int count, char **words)
{
	static unsigned char data[REQUEST];
	double start;

	if (count != 2) return 2;
	login(words[1]);
	start = now();
	for (int request = 0; request < REQUESTS; request++) {
		fill(data, request);
		scsi_free_scsi_task(good(iscsi_write10_sync(context, lun, request * (REQUEST / BLOCK), data, REQUEST, BLOCK, 0, 0, 0, 0, 0), "write"));
	}
	printf("write %.1f MB/s\n", (double)REQUEST * REQUESTS / (now() - start) / 1e6);
	start = now();
	for (int request = 0; request < REQUESTS; request++) {
		struct scsi_task *task = good(iscsi_read10_sync(context, lun, request * (REQUEST / BLOCK), REQUEST, BLOCK, 0, 0, 0, 0, 0), "read");

		fill(data, request);
		if (task->datain.size != REQUEST || memcmp(task->datain.data, data, REQUEST)) {
			fprintf(stderr, "request %d differs\n", request);
			return 1;
		}
		scsi_free_scsi_task(task);
	}
	printf("read %.1f MB/s\n", (double)REQUEST * REQUESTS / (now() - start) / 1e6);
	iscsi_logout_sync(context);
	iscsi_destroy_context(context);
	printf("data ok\n");
	return 0;
}
