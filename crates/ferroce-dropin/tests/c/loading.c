/*
 * Opens libraries by the names in its arguments, and prints which file each is, by the kernel: "load NAME FILE". A
 * name may follow "deep:" (RTLD_DEEPBIND) or "new:" (dlmopen). With -DLINKED it needs libraries itself, and prints
 * their files first. In the end it prints how many copies its own namespace has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* musl has one namespace, and no deep binding. */
#ifndef LM_ID_NEWLM
#define LM_ID_NEWLM 0
#define RTLD_DEEPBIND 0
#define dlmopen(namespace, name, flags) ((void)(namespace), dlopen(name, flags))
#endif

static void *bases[16];
static int copies;

/* Prints the file of the mapping with the address. */
static void print(const char *name, const void *address)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];
	unsigned long start, end;

	if (!maps)
		exit(2);
	while (fgets(line, sizeof(line), maps)) {
		char *file = strchr(line, '/');

		if (!file || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		if ((unsigned long)address >= start && (unsigned long)address < end)
			printf("load %s %s", name, file);
	}
	fclose(maps);
}

static void count(const void *address)
{
	Dl_info info;
	int i;

	if (!dladdr(address, &info))
		exit(2);
	for (i = 0; i < copies; i++)
		if (bases[i] == info.dli_fbase)
			return;
	bases[copies++] = info.dli_fbase;
}

/* A function of the library of that name. */
static const char *function(const char *name)
{
	if (strstr(name, "librdmacm"))
		return "rdma_create_event_channel";
	return strstr(name, "libibumad") ? "umad_init" : "ibv_get_device_list";
}

#ifdef LINKED
extern void *ibv_get_device_list(int *);
extern void *rdma_create_event_channel(void);
#endif

int main(int argc, char **argv)
{
	int i;

#ifdef LINKED
	print("linked", (const void *)ibv_get_device_list);
	count((const void *)ibv_get_device_list);
	print("linked", (const void *)rdma_create_event_channel);
	count((const void *)rdma_create_event_channel);
#endif
	for (i = 1; i < argc; i++) {
		const char *name = strchr(argv[i], ':') ? strchr(argv[i], ':') + 1 : argv[i];
		int new = !strncmp(argv[i], "new:", 4), deep = !strncmp(argv[i], "deep:", 5);
		void *handle, *address;

		if (new)
			handle = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
		else
			handle = dlopen(name, RTLD_NOW | (deep ? RTLD_DEEPBIND : 0));
		if (!handle) {
			printf("load %s %s\n", argv[i], dlerror());
			continue;
		}
		address = dlsym(handle, function(name));
		if (!address)
			return 3;
		print(argv[i], address);
		if (!new)
			count(address);
	}
	printf("copies %d\n", copies);
	return 0;
}
