/* Reads each path that stands in the file named by its argument by ibv_read_sysfs_file and says what it got: "PATH LENGTH TEXT". */
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Declared for providers alone, whose header is not installed. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

int main(int argc, char **argv)
{
	FILE *list = fopen(argc > 1 ? argv[1] : "/dev/stdin", "r");
	char path[512], text[256];

	if (!list) {
		perror("list of paths");
		return 1;
	}
	while (fgets(path, sizeof(path), list)) {
		path[strcspn(path, "\n")] = '\0';
		char *slash = strrchr(path, '/');

		if (!slash) {
			fprintf(stderr, "no path: %s\n", path);
			return 1;
		}
		*slash = '\0';
		errno = 0;
		int length = ibv_read_sysfs_file(path, slash + 1, text, sizeof(text));

		printf("%s/%s %d %s\n", path, slash + 1, length < 0 ? -errno : length, length > 0 ? text : "");
	}
	return 0;
}
