/*
 * mpi: two or more ranks exchange messages by MPI and compare every octet: a ping-pong of ranks 0 and 1, an allreduce
 * and an alltoall of all.
 *
 * Rank 0 prints half the time of a round trip of 8 octets, the rate of 1 MiB, and "data ok". A difference ends all ranks
 * with status 1.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 8, LARGE = 1 << 20, WORDS = 1 << 16 };

static int rank, ranks;

static void differ(const char *where, size_t at) {
	fprintf(stderr, "rank %d: %s differs at %zu\n", rank, where, at);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char octet(int round, size_t at) { return (unsigned char)(round * 31 + at * 7 + (at >> 8)); }

static void fill(unsigned char *data, int length, int round) {
	for (int i = 0; i < length; i++) data[i] = octet(round, i);
}

static void compare(const unsigned char *data, int length, int round) {
	for (int i = 0; i < length; i++)
		if (data[i] != octet(round, i)) differ("a message", i);
}

/* Seconds of `rounds` round trips. If `checked`, both ranks write new data before each and compare it afterwards. */
static double pingpong(unsigned char *data, int length, int rounds, int checked) {
	double start = MPI_Wtime();
	for (int round = 0; round < rounds; round++) {
		if (rank == 0) {
			if (checked) fill(data, length, 2 * round);
			MPI_Send(data, length, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
			MPI_Recv(data, length, MPI_BYTE, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (checked) compare(data, length, 2 * round + 1);
		} else {
			MPI_Recv(data, length, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (checked) {
				compare(data, length, 2 * round);
				fill(data, length, 2 * round + 1);
			}
			MPI_Send(data, length, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
		}
	}
	return MPI_Wtime() - start;
}

static void allreduce(uint64_t *own, uint64_t *sum) {
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < WORDS; i++) own[i] = (uint64_t)(rank + 1) * (i + round);
		MPI_Allreduce(own, sum, WORDS, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		uint64_t factor = (uint64_t)ranks * (ranks + 1) / 2;
		for (int i = 0; i < WORDS; i++)
			if (sum[i] != factor * (i + round)) differ("a sum", i);
	}
}

static void alltoall(uint64_t *own, uint64_t *all) {
	int part = WORDS / ranks;
	for (int i = 0; i < part * ranks; i++) own[i] = (uint64_t)rank << 32 | i;
	MPI_Alltoall(own, part, MPI_UINT64_T, all, part, MPI_UINT64_T, MPI_COMM_WORLD);
	for (int i = 0; i < part * ranks; i++)
		if (all[i] != ((uint64_t)(i / part) << 32 | (uint64_t)(rank * part + i % part))) differ("a part", i);
}

int main(int count, char **words) {
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	unsigned char *data = calloc(1, LARGE);
	uint64_t *own = calloc(WORDS, 8), *all = calloc(WORDS, 8);
	if (!data || !own || !all || ranks < 2) MPI_Abort(MPI_COMM_WORLD, 1);
	if (rank < 2) {
		for (int length = 1; length <= LARGE; length *= 4) pingpong(data, length, 4, 1);
		pingpong(data, SMALL, 200, 0);
		double small = pingpong(data, SMALL, 2000, 0);
		pingpong(data, LARGE, 10, 0);
		double large = pingpong(data, LARGE, 100, 0);
		if (rank == 0) printf("latency %.2f us\nrate %.1f MB/s\n", small / 2000 / 2 * 1e6, 2.0 * LARGE * 100 / large / 1e6);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	allreduce(own, all);
	alltoall(own, all);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) printf("%d ranks, data ok\n", ranks);
	free(data);
	free(own);
	free(all);
	MPI_Finalize();
	return 0;
}
