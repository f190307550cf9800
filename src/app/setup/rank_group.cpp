#include "app/setup/rank_group.h"

#include "app/options/build_facts.h"
#include "app/setup/interrupt.h"
#include "app/setup/memory_budget.h"
#include "app/options/option.h"
#include "app/setup/rank_card.h"
#include "backend/cuda/card_group.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/followers.h"
#include "backend/ranks/process_group.h"
#include "backend/ranks/socket_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <unistd.h>

namespace nibble::app {
namespace {

// FNV-1a.
class Hash {
 public:
  void bytes(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) value_ = (value_ ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  }
  template <class T>
  void number(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  // Hashes its length and its bytes at the beginning, in the middle and at the end. All bytes of a model would take
  // minutes.
  void part_of(std::span<const std::byte> whole) {
    constexpr size_t kPart = 4096;
    number(whole.size());
    if (whole.size() <= 3 * kPart) return bytes(whole);
    for (const size_t at : {size_t{0}, whole.size() / 2, whole.size() - kPart}) bytes(whole.subspan(at, kPart));
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

uint64_t fingerprint_of(const ModelSource& source) {
  Hash hash;
  const backend::BackendConfig config = model::backend_config(source.config, {});
  const backend::Dims& d = config.dims;
  for (const int64_t dim : {d.layers, d.hidden, d.heads, d.kv_heads, d.head_dim, d.inter, d.experts, d.topk, d.vocab,
                            d.sliding_window, d.max_context})
    hash.number(dim);
  for (const backend::LayerKind kind : config.layer_kinds) hash.number(kind);
  for (const float frequency : config.rope_inv_freq) hash.number(frequency);
  for (const float value : {config.rope_concentration, config.rms_eps, config.swiglu_limit}) hash.number(value);
  for (const backend::HostWeight& weight : source.weights) {
    hash.number(weight.role);
    hash.number(weight.layer);
    hash.number(weight.format);
    for (const RawTensor* tensor : {&weight.values, &weight.scales, &weight.odd})
      hash.part_of(std::as_bytes(std::span(tensor->bytes)));
  }
  return hash.value();
}

std::vector<backend::GroupTerm> terms_of(const ModelSource& source, const ModelOptions& options) {
  const backend::Dims& dims = source.config.dims;
  std::vector<backend::GroupTerm> terms = {
      {"version", fmt::format("{} ({})", NIBBLE_VERSION, build_facts().commit)},
      {"model", fmt::format("one of {} layers, width {} and {} experts, fingerprint {:016x}", dims.layers, dims.hidden,
                            dims.experts, fingerprint_of(source))}};
  for (const RunSetting& setting : run_settings(options.run))
    if (setting.option->traits.alike == Alike::kInAllRanks)
      terms.push_back({setting.flag, setting.value.empty() ? "none" : setting.value});
  if (options.run.backend == BackendKind::kCuda) {
    terms.push_back({"card", backend::cuda::kind_of_card()});
    terms.push_back({"NCCL", backend::cuda::nccl_version()});
  }
  return terms;
}

// Launchers signal all ranks of a group together, and rank 0 may still have requests to finish. So the first signal is
// ignored.
void wait_for_rank_0_at_a_signal() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    constexpr std::string_view kText = "nibble: this rank ends with rank 0; a second signal ends it at once\n";
    static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  std::signal(SIGHUP, SIG_IGN);  // of a terminal that closes, which may come twice
}

void follow_in(backend::ProcessGroup& group, const ModelSource& source, const ModelOptions& options, RankCard& card) {
  const backend::StepRoom room = backend::receive_room(group);
  const model::StepLimits limits{room.max_tokens, room.max_rows, room.kv_pages};
  const backend::BackendConfig config = model::backend_config(source.config, limits, options.run.dense);
  static_cast<void>(check_budget(options, config, {source.config.dims, stored_formats(options, source.weights)}));
  const std::unique_ptr<backend::Member> member = make_member(options, config, source, group, card);
  const model::GptOss gpt = model::load(*member, source.config, source.weights);
  backend::follow(group, config, *member, gpt.weights);
}

}  // namespace

std::unique_ptr<backend::Member> make_member(const ModelOptions& options, const backend::BackendConfig& config,
                                             const ModelSource& source, backend::ProcessGroup& group, RankCard& card) {
  if (options.run.backend == BackendKind::kCuda) {
    card.meet(group);
    return backend::make_cuda_member(config, options.run, card.group(), {.files = source.mapped_files()});
  }
  return backend::make_host_member(config,
                                   {.ranks = options.run.ranks,
                                    .rank = group.rank(),
                                    .transport = std::make_unique<backend::SocketTransport>(group),
                                    .draw_threads = thread_count(options)},
                                   [&](const backend::BackendConfig& of_rank) {
                                     backend::RunConfig alone = options.run;
                                     alone.ranks = {};
                                     return make_backend(alone.backend, alone, of_rank);
                                   });
}

std::unique_ptr<backend::ProcessGroup> join_group(const ModelSource& source, const ModelOptions& options,
                                                  Terminal& terminal,
                                                  std::function<void(const std::string& why)> on_lost) {
  const GroupOptions& o = options.group;
  backend::GroupPlace place{.rank = o.rank,
                            .count = o.count,
                            .first = {o.address, o.port},
                            .join_timeout = std::chrono::seconds(o.timeout),
                            .terms = terms_of(source, options)};
  backend::GroupEvents events{.note = [&terminal](const std::string& text) { terminal.note(text); },
                              .lost = std::move(on_lost)};
  return std::make_unique<backend::ProcessGroup>(std::move(place), std::move(events));
}

int follow(const ModelOptions& options, Terminal& terminal, std::string_view beside) {
  require_speculation(options);
  ModelOptions alone = options;  // rank 0 makes the guesses
  alone.speculation = {};
  alone.speculative_model.clear();
  alone.tap_reading = model::eagle3::TapReading::kAuto;
  const ModelSource source = open_model(alone, terminal);
  const bool on_card = options.run.backend == BackendKind::kCuda;
  RankCard card;
  const std::unique_ptr<backend::ProcessGroup> group = join_group(source, alone, terminal, [&](const std::string& why) {
    if (!on_card) return;
    card.lose();
    end_soon({.code = kExitIo, .within = kLostTime, .says = why});
  });
  const backend::Address first{options.group.address, options.group.port};
  terminal.note(fmt::format("rank {} of {}: follows rank 0 at {} and {}", options.group.rank, options.group.count,
                            text_of(first), beside));
  wait_for_rank_0_at_a_signal();
  try {
    follow_in(*group, source, alone, card);
  } catch (const std::exception& error) {
    if (on_card && group->lost_within({})) end_now(kExitIo, error.what());  // before NCCL waits for who is gone
    group->fail(error.what());
    throw;
  }
  terminal.note(fmt::format("rank {} of {}: rank 0 has ended", options.group.rank, options.group.count));
  if (on_card) end_soon({.code = kExitOk, .within = kLostTime});  // where NCCL waits for who is gone already
  return kExitOk;
}

}  // namespace nibble::app
