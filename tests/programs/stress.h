/*
 * What stress sends: operation n of an end follows from the seed, the end's number and n alone.
 */
#include <stdint.h>
#include <string.h>

#define PROCS 4
#define RC_PAIRS 20
#define UC_PAIRS 8
#define UDS 8
#define ENDS (2 * RC_PAIRS + 2 * UC_PAIRS + UDS)
#define MINE (ENDS / PROCS)	/* the ends of a process */
#define MAXLEN 16384u
#define WINDOW 16u		/* work requests in a send queue */
#define SLOTS 32u		/* places that a peer WRITEs to, and messages on the way */
#define RECVS 32u		/* receives that are posted to a queue pair */
#define SRQ_WRS 128u
#define GRH 40u
#define INLINE 64u
#define WORDS 8			/* words of a process that everybody adds to */
#define SOURCE 65536u		/* octets that are there to be READ */
#define REMEMBER 1024u		/* unreliable messages that are known as arrived */
#define CQS 4			/* polled in order, polled, events in order, events */
#define PATIENCE 30		/* seconds until something is lost */

#define RECV_BIT (1ull << 63)
#define SRQ_BIT (1ull << 62)
#define WAKE (~0ull)

enum service { RC, UC, UD };
static const char *const service_name[] = { "RC", "UC", "UD" };

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, READ_BACK, ADD_OWN, SWAP_OWN, ADD_COMMON, SWAP_COMMON };
static const char *const kind_name[] = { "SEND", "SEND with immediate", "WRITE", "WRITE with immediate", "READ",
	"READ of what was written", "FETCH_ADD", "CMP_SWAP", "FETCH_ADD on a common word", "CMP_SWAP on a common word" };

struct op {
	enum kind kind;
	uint32_t len;
	uint64_t bits, data;	/* for all other choices, and the pattern */
	int signaled, in_line;
};

static uint64_t seed = 1;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static enum service service_of(int id) { return id < 2 * RC_PAIRS ? RC : id < 2 * (RC_PAIRS + UC_PAIRS) ? UC : UD; }
static int peer_of(int id) { return service_of(id) == UD ? -1 : id ^ 1; }

static int process_of(int id)
{
	int pair = id / 2;
	if (service_of(id) == UD) return id % PROCS;
	return id % 2 ? (pair + 1 + pair / 4) % PROCS : pair % PROCS;
}

/* of an RC end, each period-th operation consumes a receive, so the other end knows which one it sees */
static int period_of(int id) { return 1 << mix(seed ^ id) % 4; }

static struct op op_of(int id, uint64_t n)
{
	enum service service = service_of(id);
	uint64_t h = mix(seed << 48 ^ (uint64_t)id << 40 ^ n), r = mix(h);
	struct op op = { .bits = mix(r), .data = h };
	int period = period_of(id), last = (int)(n % period) == period - 1;
	op.kind = service == UD ? h % 2 : service == UC ? (int[]){ SEND, SEND_IMM, WRITE_IMM }[h % 3] :
		last ? (int[]){ SEND, SEND_IMM, WRITE_IMM, SEND }[h % 4] :
		(int[]){ WRITE, WRITE, WRITE, WRITE, READ, READ, READ_BACK, READ_BACK, ADD_OWN, SWAP_OWN, ADD_COMMON, SWAP_COMMON }[h % 12];
	if (op.kind == READ_BACK && (n % period == 0 || op_of(id, n - 1).kind != WRITE)) op.kind = READ;
	switch (r % 8) {
	case 0: op.len = r >> 8 & 7; break;
	case 1: case 2: case 3: op.len = 1 + (r >> 8) % INLINE; break;
	case 7: op.len = (r >> 8) % (service == UD ? 4097 : MAXLEN + 1); break;
	default: op.len = (r >> 8) % 4097;
	}
	if (service != RC && op.len < 16) op.len = 16;	/* room for its number */
	if (op.kind == READ_BACK) op.len = op_of(id, n - 1).len;
	if (op.kind >= ADD_OWN) op.len = 8;
	/* the last one before a stop is always signaled */
	op.signaled = n % 8 == 7 || (op.bits & 1);
	op.in_line = op.kind <= WRITE_IMM && op.len <= INLINE && (op.bits & 2);
	return op;
}

static void fill(uint64_t from, uint8_t *at, uint32_t len)
{
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t word = mix(from + i / 8);
		memcpy(at + i, &word, len - i < 8 ? len - i : 8);
	}
}

/* the first octet that is not as the pattern has it from `skip` on, or -1 */
static long differs(uint64_t from, uint32_t skip, const uint8_t *at, uint32_t len)
{
	for (uint32_t i = 0; i < len;) {
		uint32_t in = (skip + i) % 8, n = 8 - in < len - i ? 8 - in : len - i;
		uint64_t word = mix(from + (skip + i) / 8) >> 8 * in, is = 0;
		memcpy(&is, at + i, n);
		if (n < 8) word &= (1ull << 8 * n) - 1;
		if (is != word) return i;
		i += n;
	}
	return -1;
}
