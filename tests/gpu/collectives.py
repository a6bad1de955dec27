"""One rank of two: NCCL's collectives through PyTorch, with results checked, and the time of all_reduce.

Environment: RANK, PORT. Rank 0 prints `checked` and a line for each size."""

import os
import time

import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), 2
torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{os.environ['PORT']}")


def numbers(count, of_rank):
    return torch.arange(count, device="cuda", dtype=torch.float32) % 1000 + of_rank


def seconds(count, times):
    octets = torch.ones(count, device="cuda")
    for _ in range(3):
        dist.all_reduce(octets)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(octets)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times


lines = []
for count in (2, 1024, 16384, 262144, 4194304, 16777216):
    mine = numbers(count, rank)
    dist.all_reduce(mine)
    assert torch.equal(mine, numbers(count, 0) + numbers(count, 1)), f"all_reduce of {count}"
    parts = [torch.empty(count, device="cuda") for _ in range(ranks)]
    dist.all_gather(parts, numbers(count, rank))
    assert all(torch.equal(part, numbers(count, of)) for of, part in enumerate(parts)), f"all_gather of {count}"
    if rank == 0:
        dist.send(numbers(count, 7), 1)
    else:
        sent = torch.empty(count, device="cuda")
        dist.recv(sent, 0)
        assert torch.equal(sent, numbers(count, 7)), f"send of {count}"
    took = seconds(count, 50 if count < 1_000_000 else 10)
    lines.append(f"all_reduce {count * 4} octets: {took * 1e6:.1f} us, {count * 4 / took / 1e9:.3f} GB/s")
if rank == 0:
    print("checked, NCCL", ".".join(map(str, torch.cuda.nccl.version())), flush=True)
    print("\n".join(lines), flush=True)
dist.destroy_process_group()
