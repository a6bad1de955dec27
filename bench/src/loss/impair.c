// An XDP program that loses or reorders packets, for `cargo xtask bench --loss`. Compiled once for each condition:
//   LOSS     packets of a million that it drops
//   BURST    drops so many packets in a row, if not 0; a burst ends after 1 ms at the latest
//   REORDER  packets of a million that take the way to the sender and back once more, so that later ones overtake them
//   HERE     the last octet of this end's Ethernet address; packets to others are on their way back, and are returned
// There are no locks: two processors may count a burst at once, which makes it a packet shorter or longer.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#define MILLION 1000000
#define BURST_NS 1000000

__u32 left;
__u64 began;

static int chance(__u32 per_million)
{
    return per_million > 0 && bpf_get_prandom_u32() % MILLION < per_million;
}

static int is_lost(void)
{
    if (BURST == 0)
        return chance(LOSS);
    __u64 now = bpf_ktime_get_ns();
    if (left > 0 && now - began < BURST_NS) {
        left--;
        return 1;
    }
    left = 0;
    if (!chance(LOSS / (BURST > 0 ? BURST : 1)))
        return 0;
    left = BURST - 1;
    began = now;
    return 1;
}

SEC("xdp") int impair(struct xdp_md *context)
{
    unsigned char *address = (void *)(long)context->data;
    if (address + ETH_HLEN > (unsigned char *)(long)context->data_end)
        return XDP_PASS;
    // The lowest bit of the first octet marks a group address.
    int single = !(address[0] & 1);
    if (REORDER > 0 && single && (address[5] != HERE || chance(REORDER)))
        return XDP_TX;
    return is_lost() ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "GPL";
