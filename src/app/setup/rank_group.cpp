#include "app/setup/rank_group.h"

#include "app/options/build_facts.h"
#include "app/setup/interrupt.h"
#include "app/setup/memory_budget.h"
#include "app/options/option.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/followers.h"
#include "backend/ranks/socket_transport.h"
#include "base/error.h"

#include <fmt/format.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
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

void follow_in(GroupRank& rank, const ModelSource& source, const ModelOptions& options) {
  const backend::StepRoom room = backend::receive_room(rank.group());
  const model::StepLimits limits{room.max_tokens, room.max_rows, room.kv_pages};
  const backend::BackendConfig config = model::backend_config(source.config, limits, options.run.dense);
  static_cast<void>(check_budget(options, config, {source.config.dims, stored_formats(options, source.weights)}));
  const std::unique_ptr<backend::Member> member = rank.make_member(options, config, source);
  const model::GptOss gpt = model::load(*member, source.config, source.weights);
  backend::follow(rank.group(), config, *member, gpt.weights);
}

}  // namespace

void take_own_card(const GroupOptions& group) {
  constexpr int kReplace = 1, kKeep = 0;
  if (!group.card.empty()) setenv("CUDA_VISIBLE_DEVICES", group.card.c_str(), kReplace);
  setenv("NCCL_NVLS_ENABLE", "0", kKeep);
}

void require_card_of_a_rank(const GroupOptions& group) {
  if (const backend::CudaAvailable available = backend::cuda_available(); !available.yes)
    throw Error(Code::kUnsupported, "--nnodes {} --backend cuda: want a card for rank {}{}, found none: {}",
                group.count, group.rank, group.card.empty() ? "" : ", that of CUDA_VISIBLE_DEVICES " + group.card,
                available.reason);
  static_cast<void>(backend::cuda::nccl_version());
}

GroupRank::GroupRank(const ModelSource& source, const ModelOptions& options, Terminal& terminal, OnLost on_lost)
    : on_card_(options.run.backend == BackendKind::kCuda), on_lost_(std::move(on_lost)) {
  const GroupOptions& o = options.group;
  backend::GroupPlace place{.rank = o.rank,
                            .count = o.count,
                            .first = {o.address, o.port},
                            .join_timeout = std::chrono::seconds(o.timeout),
                            .terms = terms_of(source, options)};
  backend::GroupEvents events{.note = [&terminal](const std::string& text) { terminal.note(text); },
                              .lost = [this](const std::string& why) { lose(why); }};
  group_ = std::make_unique<backend::ProcessGroup>(std::move(place), std::move(events));
}

void GroupRank::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    if (cards_) cards_->give_up();
  }
  if (on_lost_) return on_lost_(why);
  if (on_card_) end_soon({.code = kExitIo, .within = kLostTime, .says = why});
}

void GroupRank::meet_cards() {
  const std::string card = backend::cuda::id_of_card();
  std::vector<std::byte> id;
  if (group_->rank() == 0) {
    id = backend::cuda::new_card_group_id();
    backend::hand_out_id(*group_, card, id);
  } else {
    id = backend::receive_id(*group_, card);
  }
  auto cards = std::make_unique<backend::cuda::CardGroup>(
      backend::cuda::CardGroup::Place{.rank = group_->rank(), .ranks = group_->count(), .id = id});
  const std::lock_guard lock(mutex_);
  cards_ = std::move(cards);
  if (lost_) cards_->give_up();
}

std::unique_ptr<backend::Member> GroupRank::make_member(const ModelOptions& options,
                                                        const backend::BackendConfig& config,
                                                        const ModelSource& source) {
  if (on_card_) {
    meet_cards();
    return backend::make_cuda_member(config, options.run, *cards_, {.files = source.mapped_files()});
  }
  return backend::make_host_member(config,
                                   {.ranks = options.run.ranks,
                                    .rank = group_->rank(),
                                    .transport = std::make_unique<backend::SocketTransport>(*group_),
                                    .draw_threads = thread_count(options)},
                                   [&](const backend::BackendConfig& of_rank) {
                                     backend::RunConfig alone = options.run;
                                     alone.ranks = {};
                                     return make_backend(alone.backend, alone, of_rank);
                                   });
}

int follow(const ModelOptions& options, Terminal& terminal, std::string_view beside) {
  require_speculation(options);
  ModelOptions alone = options;  // rank 0 makes the guesses
  alone.speculation = {};
  alone.speculative_model.clear();
  alone.tap_reading = checkpoint::TapReading::kAuto;
  const ModelSource source = open_model(alone, terminal);
  const bool on_card = options.run.backend == BackendKind::kCuda;
  GroupRank rank(source, alone, terminal);
  const std::string me = fmt::format("rank {} of {}", options.group.rank, options.group.count);
  terminal.note(fmt::format("{}: follows rank 0 at {} and {}", me,
                            text_of(backend::Address{options.group.address, options.group.port}), beside));
  wait_for_rank_0_at_a_signal();
  try {
    follow_in(rank, source, alone);
  } catch (const std::exception& error) {
    if (on_card && rank.group().lost_within({})) end_now(kExitIo, error.what());  // before NCCL waits for who is gone
    rank.group().fail(error.what());
    throw;
  }
  terminal.note(fmt::format("{}: rank 0 has ended", me));
  if (on_card) end_soon({.code = kExitOk, .within = kLostTime});  // where NCCL waits for who is gone already
  return kExitOk;
}

}  // namespace nibble::app
