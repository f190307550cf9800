#include "app/setup/backend_choice.h"

#include "app/options/option.h"
#include "app/options/settings.h"
#include "app/setup/loaded_model.h"
#include "app/setup/rank_group.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cpu/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/card/cards.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/program/choices.h"
#include "backend/cuda/program/program.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace nibble::app {
namespace {

// The layers that are in Q8_0 throughout.
backend::DenseFormats q8_in(std::span<const backend::HostWeight> weights) {
  using enum backend::WeightRole;
  using backend::WeightFormat;
  const auto all = [&](std::initializer_list<backend::WeightRole> roles) {
    const bool q8 = std::ranges::all_of(weights, [&](const backend::HostWeight& w) {
      return w.format == WeightFormat::kGgmlQ8 || std::ranges::find(roles, w.role) == roles.end();
    });
    return q8 ? std::optional(WeightFormat::kGgmlQ8) : std::nullopt;
  };
  return {.qkv = all({kQ, kK, kV}), .o = all({kO}), .lm_head = all({kUnembedding})};
}

// The options with what stays in Q8_0 of the file's layers, beside a copy where both have room: on this machine's card
// with all else that the options want, on a `card` that is named with the other weights. Else without the copy, which
// takes less than bf16; but in bf16 where GEMMs of bf16 would be faster.
ModelOptions with_q8(const ModelOptions& options, const LimitsOf& limits_of,
                     const std::optional<backend::cuda::DeviceFacts>& card) {
  const bool may = options.run.backend == BackendKind::kCuda && options.run.dense.keeps_q8;
  if (!may || options.load_format == LoadFormat::kDummy || !is_gguf(options)) return options;
  const auto facts = card ? card : backend::cuda_plan_device();
  if (!facts) return options;
  const model::ModelConfig config = open_config(options).config;
  const ModelFiles files(options);
  const backend::DenseFormats file = q8_in(model::bind_weights(
      files.tensors(), config, {.where = options.model, .check_scales = false, .experts = options.expert_format}));
  ModelOptions with = options;
  backend::RunConfig& run = with.run;
  run.dense = backend::cuda::with_q8(backend::cuda_config(model::backend_config(config, {}, run.dense), run.ranks), run,
                                     *facts, file);
  const backend::CostModel cost = model::cost_of(config, stored_formats(with, {}));
  if (!cost.formats.wide_copies) return with;
  const backend::BackendConfig shapes = model::backend_config(config, limits_of(with, config), run.dense);
  const Budget budget = card ? budget_on(card->memory_bytes, with, shapes, cost) : budget_of(with, shapes, cost);
  if (budget.needs.total() <= budget.limit.bytes) return with;
  const bool alone = backend::cuda::widens_q8(*facts);
  ModelOptions without = alone ? with : options;
  without.run.dense.q8_copies = !alone;
  without.left_out = fmt::format("Q8_0 layers {}: with both, want {}; {}",
                                 alone ? "have no copy in bf16, and any_gemm multiplies them" : "become bf16",
                                 describe(budget.needs), budget.limit.where);
  return without;
}

// What experts on the host round to where nobody says: --fast chooses the card's formats.
Activations host_wish(const backend::RunConfig& run) { return run.fast ? Activations::kAuto : run.activations; }

// From how many tokens a step on a layer's experts are faster copied to the card than computed by the host.
int tokens_to_copy_for(const backend::CostModel& cost, const backend::RunConfig& run, double link_bytes_per_s) {
  const backend::Dims& d = cost.dims;
  const double token_flops = 2.0 * static_cast<double>(d.topk * 3 * d.hidden * d.inter),
               host_flops = backend::expert_flops_per_s({.threads = run.threads, .activations = host_wish(run)}),
               seconds =
                   static_cast<double>(cost.expert_bytes(1)) / (backend::cuda::kExpertCopyShare * link_bytes_per_s);
  return static_cast<int>(std::ceil(std::clamp(seconds * host_flops / token_flops, 1.0, 65536.0)));
}

// The options with as few layers' experts on the host as let the model fit the card, if they leave that open; with all,
// where that does not do either: the budget refuses it. A `card` that is named is taken for empty.
ModelOptions with_host_layers(const ModelOptions& options, const LimitsOf& limits_of,
                              const std::optional<backend::cuda::DeviceFacts>& card) {
  if (options.run.backend != BackendKind::kCuda) return options;
  const int asked = options.run.cpu_moe_layers;
  if (options.run.ranks.count > 1 && asked > 0)
    throw Error(Code::kUnsupported, "--n-cpu-moe {}: want one card, found --tensor-parallel-size {}", asked,
                options.run.ranks.count);
  ModelOptions with = options;
  with.run.cpu_moe_layers = 0;
  if (options.run.ranks.count > 1 || asked == 0 || (!card && !backend::cuda_available().yes)) return with;
  const model::ModelConfig config = open_config(options).config;
  const auto layers = static_cast<int>(config.dims.layers);
  const backend::CostModel cost = model::cost_of(config, stored_formats(options, {}));
  const auto left_to_host = [&](int count) {
    constexpr double kPcie4 = 25e9;  // 16 lanes, of a card that is not here
    with.run.cpu_moe_layers = count;
    if (count > 0 && options.run.expert_copy_tokens < 0)
      with.run.expert_copy_tokens = tokens_to_copy_for(cost, options.run, card ? kPcie4 : backend::measure_link(0));
    return with;
  };
  if (asked > 0) return left_to_host(std::min(asked, layers));
  const backend::BackendConfig shapes = model::backend_config(config, limits_of(options, config), options.run.dense);
  const auto budget = [&](int64_t count) {
    ModelOptions some = options;
    some.run.cpu_moe_layers = static_cast<int>(count);
    some.run.expert_copy_tokens = std::abs(options.run.expert_copy_tokens);  // for any number of tokens as much memory
    return card ? budget_on(card->memory_bytes, some, shapes, cost) : budget_of(some, shapes, cost);
  };
  const Budget whole = budget(0);
  const auto least = least_host_layers(whole.limit, layers, [&](int64_t count) { return budget(count).needs; });
  // A context that takes what is left gets a layer's room at the least.
  const int more = options.run.max_model_len == kContextThatFits && least.value_or(0) > 0 ? 1 : 0;
  static_cast<void>(left_to_host(std::min(layers, least.value_or(layers) + more)));
  if (with.run.cpu_moe_layers > 0)
    with.offload_why = fmt::format("experts of {} layers are left to the host: with all on the card, want {}; {}",
                                   with.run.cpu_moe_layers, describe(whole.needs), whole.limit.where);
  return with;
}

CardFacts card_facts(const ModelOptions& options, const LimitsOf& limits_of) {
  CardFacts card;
  if (const backend::CudaAvailable available = backend::cuda_available(); !available.yes) {
    card.why_not = available.reason;
    card.expected = available.expected;
    return card;
  }
  if (const auto facts = backend::cuda_plan_device()) card.name = facts->name;
  const model::ModelConfig config = open_config(options).config;
  const model::StepLimits limits = limits_of(options, config);
  try {
    const ModelOptions held = with_host_layers(with_q8(options, limits_of, {}), limits_of, {});
    card.host_layers = held.run.cpu_moe_layers;
    const backend::CostModel cost = model::cost_of(config, stored_formats(held, {}));
    const Budget budget = budget_of(held, model::backend_config(config, limits, held.run.dense), cost);
    card.needs = budget.needs;
    card.room = budget.limit;
  } catch (const Error& why) {  // the card has no kernels for these shapes or flags
    card.why_not = why.what();
  }
  return card;
}

}  // namespace

BackendChoice choose_backend(const CardFacts& card, std::string_view host_flag) {
  if (!host_flag.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {} is not for cards", host_flag)};
  if (!card.expected) return {BackendKind::kCpu, ""};
  if (!card.why_not.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {}", card.why_not)};
  if (card.needs.total() > card.room.bytes) {
    return {BackendKind::kCpu, fmt::format("backend cpu: too little memory on the card, {}: want {}{}; {}", card.name,
                                           describe(card.needs),
                                           card.host_layers > 0 ? " beside the host's experts" : "", card.room.where)};
  }
  return {BackendKind::kCuda,
          fmt::format("backend cuda: {} has room for the model{}", card.name,
                      card.host_layers > 0 ? fmt::format(" but the experts of {} layers", card.host_layers) : "")};
}

ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of,
                          const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto fast = [&card](const ModelOptions& o) {
    const bool ask = o.run.fast && !card && o.run.backend == BackendKind::kCuda;
    return with_fast(o, ask ? backend::cuda_plan_device() : card);
  };
  const bool may_be_a_card = options.run.backend == BackendKind::kAuto || options.run.backend == BackendKind::kCuda;
  if (in_a_group(options) && may_be_a_card) take_own_card(options.group);
  const auto on_card = [&](const ModelOptions& o) {
    return with_host_layers(with_q8(fast(o), limits_of, card), limits_of, card);
  };
  if (options.run.backend != BackendKind::kAuto) return on_card(options);
  if (options.run.ranks.count > 1 && !in_a_group(options) &&
      backend::cuda_available().yes)  // who has cards did not mean the CPU
    backend::require_cards(options.run.ranks.count, fmt::format("--tensor-parallel-size {}", options.run.ranks.count));
  ModelOptions with = options;
  with.run.backend = BackendKind::kCuda;
  const auto of_a_host = first_misfit(options.run, {BackendKind::kCuda});
  const std::string host_flag = of_a_host ? of_a_host->asked() : "";
  BackendChoice choice = choose_backend(host_flag.empty() ? card_facts(fast(with), limits_of) : CardFacts(), host_flag);
  with.run.backend = choice.backend;
  with.backend_why = std::move(choice.why);
  return on_card(with);
}

using backend::Activations;

ModelOptions resolved_model(ModelOptions options) {
  if (std::string left_out = leave_out_card_settings(options.run); !left_out.empty())
    options.left_out = std::move(left_out);
  const backend::RunConfig& run = options.run;
  check_backends(run, {run.backend}, options.backend_why);
  if (run.backend == BackendKind::kCuda && in_a_group(options)) require_card_of_a_rank(options.group);
  if (run.ranks.count > 1) {
    const model::ModelConfig config = open_config(options).config;
    backend::validate(run.ranks, config.dims, config.layer_experts);
  }
  Activations on_host = run.cpu_moe_activations;
  if (run.backend == BackendKind::kCuda && run.cpu_moe_layers > 0 && on_host == Activations::kAuto)
    on_host = backend::resolved_cpu({.threads = run.threads, .activations = host_wish(run)}).activations;
  options.run =
      run.backend == BackendKind::kCpu ? backend::resolved_cpu(run)
      : run.backend == BackendKind::kReference
          ? backend::resolved_reference(run)
          : backend::resolved_cuda(
                backend::cuda_config(model::backend_config(open_config(options).config, {}, run.dense), run.ranks),
                run);
  options.run.cpu_moe_activations = on_host;
  for (const RunSetting& setting : run_settings(options.run))
    if (setting.given && setting.on.has(run.backend)) note_resolved(options.settings, setting.flag, setting.value);
  return options;
}

ModelOptions resolved_alone(const ModelOptions& options, int64_t context,
                            const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto limits_of = [context](const ModelOptions& o, const model::ModelConfig& config) {
    return with_taps(engine::step_limits(one_sequence(o, context_length(o, config, context)), config.dims), o, config);
  };
  return resolved_model(with_backend(options, limits_of, card));
}

namespace {

using backend::KvDtype;
using backend::WeightFormat;
using enum FastPlace;

constexpr Activations kExact = Activations::kBf16, kCodes = Activations::kMxfp8;  // what dense layers multiply
// tests/fast_losses_test.cpp measures them, and the candidates that lost. Which is faster where, and why:
// docs/decisions/0021.
constexpr FastSet kSets[] = {
    {WeightFormat::kMxfp4, kExact, Activations::kInt8, KvDtype::kE4m3, 0.790, kCpu},
    {WeightFormat::kMxfp4, kExact, Activations::kInt8, KvDtype::kBf16, 0.686, kTilesCpu},
    {WeightFormat::kMxfp4, kExact, Activations::kBf16, KvDtype::kE4m3, 0.784, kCard},
    {WeightFormat::kMxfp4, kExact, Activations::kBf16, KvDtype::kBf16, 0.661, kBf16Card},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp8, KvDtype::kBf16, 0.824, kFp8Card},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp6, KvDtype::kE4m3, 0.518, kBlockScaledCard, true},
};

void refuse_given_formats(const ModelOptions& o) {
  std::string_view given;
  if (o.run.dense.any()) given = "--mxfp4-layers or --mxfp8-layers";
  if (o.run.activations != Activations::kAuto) given = "--moe-activation";
  if (o.run.dense_activations != Activations::kAuto) given = "--dense-activation";
  if (o.run.attention_activations != backend::AttentionActivations::kAuto) given = "--attention-activation";
  if (o.run.kv) given = "--kv-cache-dtype";
  if (!given.empty())
    throw Error(
        Code::kInvalidRequest,
        "--fast: it chooses the formats of dense layers, activations and KV cache: want it alone, found {} beside "
        "it",
        given);
}

std::optional<FastPlace> place_on_cpu(const ModelOptions& options, const backend::Dims& dims) {
  const backend::cpu::Kernels kernels = backend::cpu::kernels_for(options.run.isa);
  if (kernels.int8 == nullptr) return std::nullopt;
  return kernels.int8->paired != nullptr && dims.head_dim == backend::kPageTokens ? kTilesCpu : kCpu;
}

std::optional<FastPlace> place_on_card(const ModelOptions& options, const model::ModelConfig& config,
                                       const backend::cuda::DeviceFacts& card) {
  const backend::Dims& d = config.dims;
  if (options.run.family == backend::KernelFamily::kReference ||
      backend::cuda::why_not_packed(model::backend_config(config, {}, {})))
    return std::nullopt;
  const bool fp8 = options.run.attention != backend::AttentionKernel::kReference &&
                   backend::cuda::flash_serves(d.heads, d.kv_heads, d.head_dim, KvDtype::kE4m3) &&
                   backend::cuda::prefill_takes(card, KvDtype::kE4m3);
  if (!fp8) return backend::cuda::multiplies_rows(options.run.family, d, card) ? kFp8Card : kBf16Card;
  return backend::cuda::multiplies_codes(options.run.family, d, card) ? kBlockScaledCard : kCard;
}

}  // namespace

std::span<const FastSet> fast_sets() { return kSets; }

const FastSet* fastest_at(std::optional<FastPlace> place) {
  for (const FastSet& set : kSets)
    if (place && set.place == place && set.loss < kFastLoss) return &set;
  return nullptr;
}

std::string describe(const FastSet& set) {
  std::string text;
  const auto add = [&](std::string_view what, std::string_view format) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, format);
  };
  if (set.dense) add("dense layers", name_of(*set.dense));
  if (rounds(set.dense_activations)) add("what they multiply", name_of(set.dense_activations));
  if (rounds(set.activations)) add("activations", name_of(set.activations));
  if (set.kv != KvDtype::kBf16) add("KV cache", type_of(set.kv).word);
  if (set.fp8_attention) add("attention", "fp8");
  return text;
}

ModelOptions with_fast(const ModelOptions& options, const std::optional<backend::cuda::DeviceFacts>& card) {
  if (!options.run.fast || options.run.backend == BackendKind::kReference) return options;  // which is refused by name
  refuse_given_formats(options);
  ModelOptions with = options;
  const model::ModelConfig config = open_config(options).config;
  std::optional<FastPlace> place;
  if (options.run.backend == BackendKind::kCpu) place = place_on_cpu(options, config.dims);
  if (options.run.backend == BackendKind::kCuda && card) place = place_on_card(options, config, *card);
  const FastSet* const set = fastest_at(place);
  if (set == nullptr) {
    with.fast_why = "fast: nothing lossy is known to be faster here";
    return with;
  }
  with.run.dense = {.qkv = set->dense, .o = set->dense, .lm_head = set->dense};
  if (rounds(set->activations)) with.run.activations = set->activations;
  if (rounds(set->dense_activations)) with.run.dense_activations = set->dense_activations;
  with.run.kv = set->kv;
  if (set->fp8_attention) with.run.attention_activations = backend::AttentionActivations::kFp8;
  with.fast_why = fmt::format("fast: {}; {:.2f} % of perplexity on nibble-tiny", describe(*set), set->loss);
  return with;
}

namespace {

ModelOptions model_shapes(BackendKind backend) {
  ModelOptions model;
  model.model = "gpt-oss-20b";
  model.load_format = LoadFormat::kDummy;
  model.run.backend = backend;
  return model;
}

BackendKind backend_named(std::string_view name) {
  for (const BackendKind kind : backend::kBackends)
    if (backend::name_of(kind) == name) return kind;
  check(false, "a backend's name");
  return {};
}

}  // namespace

ServeOptions resolved_features(ServeOptions options, const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto one = [](const ModelOptions& o, const model::ModelConfig& config) {
    return engine::step_limits(one_sequence(o, backend::kPageTokens), config.dims);
  };
  const ModelOptions with = with_backend(options.model, one, card);
  check_backends(with.run, {with.run.backend}, with.backend_why);  // nothing is left out of what is compared
  options.model = resolved_model(with);
  require_speculation(options.model);
  if (!card) return options;
  const std::array row = {backend::Row{.tokens = 1, .context = 1}};
  const backend::RunConfig& run = options.model.run;
  static_cast<void>(
      backend::cuda::make_program({.config = model::backend_config(open_config(options.model).config, {}, run.dense),
                                   .run = run,
                                   .step = {.rows = row, .logit_rows = 1},
                                   .card = *card}));
  return options;
}

std::string refusal_of(const Refusal& asked) {
  try {
    ServeOptions options;
    options.model = model_shapes(backend_named(asked.backend));
    std::optional<backend::cuda::DeviceFacts> card;
    if (!asked.card.empty()) card = backend::cuda::card_named(asked.card).facts;
    static_cast<void>(resolved_features(with_words(options, feature_words(asked.words)), card));
  } catch (const Error& e) {
    if (e.code() != Code::kUnsupported && e.code() != Code::kInvalidRequest) throw;
    return e.what();
  }
  return {};
}

}  // namespace nibble::app
