// tensorpipe ROLE TRANSPORT HOST PORT: messages of 1 MiB through a pipe of TensorPipe, which PyTorch's RPC is built
// on. ROLE is server, which sends each message back, or client. TRANSPORT is ibv or uv (TCP). The client compares
// every octet, and prints the rate of both directions together and "data ok".

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <tensorpipe/tensorpipe.h>

namespace {

constexpr size_t LENGTH = 1 << 20;
constexpr int CHECKED = 5, TURNS = 200;

void must(const tensorpipe::Error& error) {
  if (!error) return;
  std::fprintf(stderr, "%s\n", error.what().c_str());
  std::_Exit(1);
}

tensorpipe::Message message(std::vector<char>& data) {
  tensorpipe::Message message;
  tensorpipe::Message::Tensor tensor;
  tensor.buffer = tensorpipe::CpuBuffer{data.data()};
  tensor.length = data.size();
  message.tensors.push_back(tensor);
  return message;
}

// Writes a message. The result is false if the other end closed the pipe.
bool write(tensorpipe::Pipe& pipe, std::vector<char>& data) {
  std::promise<bool> done;
  pipe.write(message(data), [&](const tensorpipe::Error& error) { done.set_value(!error); });
  return done.get_future().get();
}

// Reads a message to `data`. The result is false if the other end closed the pipe.
bool read(tensorpipe::Pipe& pipe, std::vector<char>& data) {
  std::promise<bool> described;
  pipe.readDescriptor([&](const tensorpipe::Error& error, tensorpipe::Descriptor) { described.set_value(!error); });
  if (!described.get_future().get()) return false;
  tensorpipe::Allocation allocation;
  allocation.tensors.resize(1);
  allocation.tensors[0].buffer = tensorpipe::CpuBuffer{data.data()};
  std::promise<void> done;
  pipe.read(allocation, [&](const tensorpipe::Error& error) {
    must(error);
    done.set_value();
  });
  done.get_future().wait();
  return true;
}

void serve(tensorpipe::Context& context, const std::string& url) {
  auto listener = context.listen({url});
  std::promise<std::shared_ptr<tensorpipe::Pipe>> accepted;
  listener->accept([&](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) {
    must(error);
    accepted.set_value(std::move(pipe));
  });
  auto pipe = accepted.get_future().get();
  std::vector<char> data(LENGTH);
  while (read(*pipe, data) && write(*pipe, data)) {
  }
}

char octet(int turn, size_t place) { return static_cast<char>(turn * 31 + place * 7 + (place >> 8)); }

void ask(tensorpipe::Context& context, const std::string& url) {
  auto pipe = context.connect(url);
  std::vector<char> sent(LENGTH), received(LENGTH);
  for (int turn = 0; turn < CHECKED; turn++) {
    for (size_t place = 0; place < LENGTH; place++) sent[place] = octet(turn, place);
    write(*pipe, sent);
    if (!read(*pipe, received) || received != sent) {
      std::fprintf(stderr, "turn %d: the data differ\n", turn);
      std::_Exit(1);
    }
  }
  auto start = std::chrono::steady_clock::now();
  for (int turn = 0; turn < TURNS; turn++) {
    write(*pipe, sent);
    if (!read(*pipe, received)) std::_Exit(1);
  }
  std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  std::printf("rate %.1f MB/s\ndata ok\n", 2.0 * LENGTH * TURNS / spent.count() / 1e6);
  std::fflush(stdout);
  pipe->close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: tensorpipe server|client ibv|uv HOST PORT\n");
    return 2;
  }
  std::string role = argv[1], transport = argv[2], url = transport + "://" + argv[3] + ":" + argv[4];
  tensorpipe::Context context;
  context.registerTransport(
      0, transport, transport == "ibv" ? tensorpipe::transport::ibv::create() : tensorpipe::transport::uv::create());
  context.registerChannel(0, "basic", tensorpipe::channel::basic::create());
  if (role == "server") {
    serve(context, url);
  } else {
    ask(context, url);
  }
  context.close();
  context.join();
  return 0;
}
