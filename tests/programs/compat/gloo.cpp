// gloo TRANSPORT FOLDER: sums by gloo's ring between two processes that this one forks, over TRANSPORT, which is
// ibverbs or tcp. The processes meet by files in FOLDER. Every sum is compared. Rank 0 prints the time of a sum of
// 8 octets and the rate of 1 MiB, and the parent prints "data ok".

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <gloo/transport/tcp/device.h>

namespace {

constexpr int RANKS = 2;
// So many numbers are 1 MiB.
constexpr size_t COUNT = 1 << 18;
constexpr int TURNS = 50, SMALL_TURNS = 2000;

std::shared_ptr<gloo::transport::Device> device(const std::string& transport) {
  if (transport == "tcp") return gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::transport::ibverbs::attr attr;
  attr.name = "fr0";
  attr.port = 1;
  attr.index = 0;
  return gloo::transport::ibverbs::CreateDevice(attr);
}

float value(int rank, int turn, size_t place) {
  return static_cast<float>((place * 7 + turn * 31 + rank * 13) % 1000);
}

void fill(std::vector<float>& data, int rank, int turn) {
  for (size_t place = 0; place < data.size(); place++) data[place] = value(rank, turn, place);
}

bool summed(const std::vector<float>& data, int turn) {
  for (size_t place = 0; place < data.size(); place++) {
    float sum = 0;
    for (int rank = 0; rank < RANKS; rank++) sum += value(rank, turn, place);
    if (data[place] != sum) return false;
  }
  return true;
}

// Runs `sum` on `data` so many times. The result is the seconds of one sum, or negative if a sum is wrong.
template <typename Sum>
double run(Sum& sum, std::vector<float>& data, int rank, int turns) {
  std::chrono::duration<double> spent(0);
  for (int turn = 0; turn < turns; turn++) {
    fill(data, rank, turn);
    auto start = std::chrono::steady_clock::now();
    sum.run();
    spent += std::chrono::steady_clock::now() - start;
    if (!summed(data, turn)) return -1;
  }
  return spent.count() / turns;
}

// Gloo's buffers abort if they are destroyed before the last completion was read, so a rank exits without
// destructors.
[[noreturn]] void rank_of(int rank, const std::string& transport, const std::string& folder) {
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, RANKS);
  auto network = device(transport);
  context->connectFullMesh(store, network);
  std::vector<float> large(COUNT), small(2);
  gloo::AllreduceRingChunked<float> large_sum(context, {large.data()}, large.size());
  gloo::AllreduceRing<float> small_sum(context, {small.data()}, small.size());
  double large_time = run(large_sum, large, rank, TURNS), small_time = run(small_sum, small, rank, SMALL_TURNS);
  if (large_time < 0 || small_time < 0) {
    std::fprintf(stderr, "rank %d: a sum is wrong\n", rank);
    _exit(1);
  }
  gloo::BarrierAllToAll barrier(context);
  barrier.run();
  if (rank == 0) {
    std::printf("latency %.2f us\nrate %.1f MB/s\n", small_time * 1e6, COUNT * sizeof(float) / large_time / 1e6);
    std::fflush(stdout);
  }
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gloo ibverbs|tcp FOLDER\n");
    return 2;
  }
  for (int rank = 0; rank < RANKS; rank++) {
    if (fork() != 0) continue;
    // A rank that waits for another one, which has failed, ends with the parent.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      rank_of(rank, argv[1], argv[2]);
    } catch (const std::exception& why) {
      std::fprintf(stderr, "rank %d: %s\n", rank, why.what());
      _exit(1);
    }
  }
  for (int rank = 0; rank < RANKS; rank++) {
    int status = 1;
    wait(&status);
    if (status != 0) return 1;
  }
  std::puts("data ok");
  return 0;
}
