// What the engine itself costs per step, beside a backend that computes nothing: plan, step, tokens out.
//
//   engine_bench [sequences] [context] [steps]
//
// All sequences decode; one step gives each a token.

#include "base/error.h"
#include "engine/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace nibble {
namespace {

// Of this thread's processor time: other programs do not count.
double now_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

class NullBackend final : public backend::Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "null"; }
  backend::WeightHandle upload(const backend::HostWeight&) override { return {}; }
  void copy_page(const backend::PageCopy&) override {}
  void embed(const backend::EmbedArgs&) override {}
  void attn_in(const backend::AttnInArgs&) override {}
  void attend(const backend::AttendArgs&) override {}
  void attn_out(const backend::AttnOutArgs&) override {}
  void route(const backend::RouteArgs&) override {}
  void moe(const backend::MoeArgs&) override {}
  void logits(const backend::LogitsArgs&) override {}
  backend::Ticket sample(const backend::SampleArgs& args) override {
    rows_[static_cast<size_t>(++ticket_ % 2)] = args.rows.size();
    return ticket_;
  }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket ticket) override {
    std::vector<backend::DrawnToken> drawn(rows_[static_cast<size_t>(ticket % 2)]);
    for (backend::DrawnToken& d : drawn) d.token = 1;
    return drawn;
  }
  [[nodiscard]] backend::SlotData peek(backend::Slot) override { return {}; }

 private:
  std::array<size_t, 2> rows_{};
  backend::Ticket ticket_ = 0;
};

void run(int sequences, int64_t context, int64_t steps) {
  model::GptOss gpt{.config = model::gpt_oss_20b(), .weights = {}};
  gpt.weights.layers.resize(static_cast<size_t>(gpt.config.dims.layers));
  const engine::EngineLimits limits{.max_context = context + steps + 8,
                                    .max_sequences = sequences,
                                    .max_batched_tokens = 8192,
                                    .kv_tokens = sequences * (context + steps + 72)};
  NullBackend be;
  engine::Loop loop(be, gpt, limits);
  int64_t heard = 0;
  for (int i = 0; i < sequences; ++i) {
    engine::Request request{.max_tokens = steps + 4};
    for (int64_t t = 0; t < context; ++t) request.prompt.push_back(static_cast<int32_t>((t * 7 + i) % 200000));
    loop.add(static_cast<engine::RequestId>(i + 1), std::move(request), [&](const engine::Event&) { ++heard; });
  }
  const double prefill = now_us();
  int64_t prefill_steps = 0;
  for (; heard < sequences; ++prefill_steps) loop.step();
  const double prefill_us = now_us() - prefill;
  std::vector<double> us;
  while (heard + sequences <= steps * sequences) {
    const double start = now_us();
    loop.step();
    us.push_back(now_us() - start);
  }
  check(!us.empty(), "some steps were measured");
  std::sort(us.begin(), us.end());
  fmt::print("{:4} sequences, context {:6}: decode step {:7.1f} us median, {:7.1f} us p99; prefill step {:7.1f} us\n",
             sequences, context, us[us.size() / 2], us[us.size() * 99 / 100],
             prefill_us / static_cast<double>(prefill_steps));
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc == 4) {
    nibble::run(std::atoi(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]));
    return 0;
  }
  for (const int sequences : {1, 8, 64, 256})
    for (const int64_t context : {256, 2048, 8192}) nibble::run(sequences, context, 1000);
  return 0;
}
