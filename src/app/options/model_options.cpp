#include "app/options/model_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace nibble::app {

void add_load_format(Flags flags, LoadFormat& into) {
  flags.group(HelpGroup::kExpert);
  add_choice<LoadFormat>(
      flags, "--load-format",
      {into,
       {{"auto", LoadFormat::kAuto},
        {"safetensors", LoadFormat::kSafetensors},
        {"gguf", LoadFormat::kGguf},
        {"dummy", LoadFormat::kDummy}}},
      "dummy: random weights of the right shapes, nothing read but config.json or a GGUF file's keys");
  flags.group(HelpGroup::kCommon);
}

namespace {

constexpr const char* kModelHelp = "Folder, .gguf file or name such as gpt-oss-20b (docs/models.md)";
constexpr const char* kPresets = "; with --load-format dummy also tiny";

}  // namespace

void add_model_name(Flags flags, std::string& into, const std::string& otherwise, std::optional<Flag> prompt) {
  Flag named = flags.value("-m,--model", into, kModelHelp + otherwise).not_empty();
  auto take_prompt = [prompt](const std::string& found) mutable {
    if (!prompt->given()) return prompt->set({found}, "");
    refuse_value("prompt", fmt::format("want one text, found another: \"{}\". A text with blanks needs quotes", found));
  };
  auto take = [&into, named, prompt, take_prompt](const std::string& found) mutable {  // after --model
    std::error_code ignored;
    const bool is_text = found.find(' ') != std::string::npos && !std::filesystem::exists(found, ignored);
    if (prompt && is_text) return take_prompt(found);  // nibble chat "What is the capital of France?"
    if (!named.given()) return named.set({found}, "");
    if (into == found) return;
    if (prompt) return take_prompt(found);
    refuse_value("model", fmt::format("want one model, found --model {} and \"{}\". A text with blanks needs quotes",
                                      into, found));
  };
  // The names are not "model" and "prompt", since newer releases of CLI11 would take those for --model and --prompt.
  flags.take("NAME", take, "The same without --model").not_empty();
  if (prompt) flags.take("TEXT", take_prompt, "The same without --prompt");
}

void add_revision(Flags flags, std::string& into) {
  flags.group(HelpGroup::kExpert);
  flags.value("--revision", into, "Branch, tag or commit of a model of the Hub; default: main, or what there is")
      .not_empty();
  flags.group(HelpGroup::kCommon);
}

void add_pull(Flags flags, WhenAbsent& into) {
  into = WhenAbsent::kOffer;
  flags.mention(
      "-y,--pull", [&into] { into = WhenAbsent::kPull; }, "First get the model from the Hub if it is not here");
}

void add_model(Flags flags, ModelOptions& o, std::optional<Flag> prompt) {
  add_model_name(flags, o.model, kPresets, prompt);
  add_revision(flags, o.revision);
  add_load_format(flags, o.load_format);
}

void add_kernels(Flags flags, ModelOptions& o, KernelFlags which) {
  const bool host = which == KernelFlags::kAll;
  if (host) flags.value("-t,--threads", o.run.threads, "Threads; 0: one per core").whole(0, 1024);
  flags.group(HelpGroup::kPerformance);
  using Kv = std::optional<backend::KvDtype>;
  Choice<Kv> kv_types{o.run.kv, {{"auto", std::nullopt}}};
  for (const backend::KvType& type : backend::kKvTypes) kv_types.words.emplace_back(type.word, type.dtype);
  add_choice<Kv>(
      flags, "--kv-cache-dtype", kv_types,
      "Keys and values; auto: bf16, for compare f32; fp8: E4M3, lossy; int8 (cpu, reference): with a scale per head "
      "and token, lossy");
  flags.group(HelpGroup::kExpert);
  using backend::AttentionKernel;
  add_choice<AttentionKernel>(
      flags, "--attention-backend",
      named(o.run.attention, {AttentionKernel::kAuto, AttentionKernel::kFlash, AttentionKernel::kReference}),
      "Attention kernels of cuda; auto: flash where it serves the shapes and pages of bf16 or fp8");
  using backend::AttentionActivations;
  add_choice<AttentionActivations>(
      flags, "--attention-activation",
      named(o.run.attention_activations,
            {AttentionActivations::kAuto, AttentionActivations::kBf16, AttentionActivations::kFp8}),
      "What attention multiplies; auto, bf16: queries and weights of 16 bits or better; fp8: both rounded to E4M3, "
      "lossy, with --kv-cache-dtype fp8: cuda multiplies prompts' attention in that format, from compute capability 8.9 "
      "on but for Hopper; all else computes the same numbers as if they were exact");
  using backend::Activations;
  Choice<Activations> activations{o.run.activations, {}};
  for (const backend::ActivationType& type : backend::kActivationTypes)
    activations.words.emplace_back(type.word, type.activations);
  add_choice<Activations>(
      flags, "--moe-activation", activations,
      "What the experts multiply; auto: cpu: int8 where there are instructions for it, else f32; others: exact; bf16: "
      "16 bits or better, exact: cuda f16, others float; f32 (cpu): exact; int8 (cpu: also what Q8_0 weights multiply; "
      "faster, lossy; prompts on AMX: bf16; cuda: with --moe-kernel gemv); mxfp8, mxfp6, mxfp4: rounded to E4M3, E2M3, "
      "E2M1 in blocks of 32, lossy; cuda of compute capability 12 multiplies prompts in these formats, Hopper in mxfp8, "
      "all others as if they were exact: for comparison, not faster");
  Choice<Activations> dense{o.run.dense_activations, {}};
  for (const Activations each : {Activations::kAuto, Activations::kBf16, Activations::kMxfp8})
    dense.words.emplace_back(name_of(each), each);
  add_choice<Activations>(
      flags, "--dense-activation", dense,
      "What dense layers multiply; auto: exact, on a cpu int8 where the experts' are; bf16: 16 bits or better, exact; "
      "mxfp8: layers of --mxfp4-layers and --mxfp8-layers multiply activations rounded to E4M3 in blocks of 32, lossy; "
      "cuda of compute capability 12 multiplies prompts in that format, all others as if they were exact");
  using backend::CpuIsa;
  if (host)
    add_choice<CpuIsa>(flags, "--cpu-isa",
                       named(o.run.isa, {CpuIsa::kAuto, CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kAvxVnni,
                                         CpuIsa::kAvx512, CpuIsa::kAmx, CpuIsa::kDotProd, CpuIsa::kI8mm}),
                       "CPU: instruction set; auto: the best there is");
  using backend::KernelFamily;
  add_choice<KernelFamily>(
      flags, "--moe-kernel",
      named(o.run.family, {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm, KernelFamily::kInt8,
                           KernelFamily::kReference}),
      "cuda: who multiplies; marlin: streaming kernels for few tokens (moe_up, moe_down, grouped, gemv); gemm: those up "
      "to 8 tokens, tensor-core GEMMs for more; auto: each where it is faster; gemv: experts on dp4a (any_gemv_int8), "
      "activations in int8, lossy, all else as auto; reference: plain loops (any_moe_*, any_linear)");
  using backend::MoeTile;
  add_choice<MoeTile>(
      flags, "--moe-tile", named(o.run.moe_tile, {MoeTile::kAuto, MoeTile::k64x128, MoeTile::k128x128}),
      "cuda, compute capability 12, with --moe-activation mxfp8, mxfp6 or mxfp4: tokens x rows of a tile "
      "where GEMMs multiply the experts; auto: by how many tokens an expert has");
  flags.turn("--enforce-eager,!--no-enforce-eager", o.run.eager, "cuda: launch every kernel of a step; no CUDA graphs");
  flags.group(HelpGroup::kPerformance);
  add_dense_format(flags, "--mxfp4-layers", backend::WeightFormat::kMxfp4, o.run.dense);
  add_dense_format(flags, "--mxfp8-layers", backend::WeightFormat::kMxfp8, o.run.dense);
  flags.group(HelpGroup::kCommon);
}

void add_ranks(Flags flags, ModelOptions& o) {
  flags.group(HelpGroup::kPerformance);
  flags
      .value("--tensor-parallel-size", o.run.ranks.count,
             "Ranks that share every step, each with its part of all weights and its heads' keys and values. cuda: a "
             "card for each, up to 8 of one machine that reach each other's memory; cpu, reference: they divide the "
             "threads")
      .whole(1, 1024)
      .usual("1");
  flags.turn("--enable-expert-parallel,!--no-enable-expert-parallel", o.run.ranks.whole_experts,
             "With --tensor-parallel-size: a rank has some experts whole instead of a part of each");
  flags.group(HelpGroup::kCommon);
}

void add_runtime(Flags flags, ModelOptions& o) {
  flags.group(HelpGroup::kExpert);
  add_seed(flags, "--dummy-seed", o.dummy_seed, "Seed of the dummy weights");
  flags.group(HelpGroup::kCommon);
  add_kernels(flags, o);
  add_ranks(flags, o);
  flags.group(HelpGroup::kPerformance);
  flags.turn("--no-mmap", o.run.copy_weights,
             "CPU: weights are copied to memory of their own, on huge pages: reads are faster, the start is slower, "
             "and nothing is shared with other processes");
  flags.group(HelpGroup::kExpert);
  add_choice<bool>(flags, "--attention-sinks", {o.run.sinks, {{"on", true}, {"off", false}, {"auto", true}}},
                   "off shows what the model loses without them");
  flags.group(HelpGroup::kCommon);
}

void add_limits(Flags flags, ModelOptions& o, const ContextWords& context) {
  flags.value("--max-model-len", o.run.max_model_len, "Context in tokens: prompt and answer together")
      .whole(1, 1 << 24, context.fits)
      .usual(context.usual);
  flags.group(HelpGroup::kPerformance);
  flags.value("--max-num-batched-tokens", o.run.max_num_batched_tokens, "Most prompt tokens computed in one step")
      .whole(1, 65536)
      .usual(o.run.max_num_batched_tokens > 0
                 ? fmt::format("{}", o.run.max_num_batched_tokens)
                 : fmt::format("{}, with --backend cuda {}", backend::kHostStepTokens, backend::kCardStepTokens));
  flags
      .value("--gpu-memory-utilization", o.run.gpu_memory_utilization,
             fmt::format("Share of the card's memory to use at most, with --backend cuda; default {}",
                         backend::kGpuMemoryUtilization))
      .within(0.01, 1.0);
  flags.group(HelpGroup::kCommon);
}

Choice<BackendKind> backends(BackendKind& into) {
  Choice<BackendKind> choice{into, {}};
  for (const BackendKind kind : backend::kBackends) choice.words.emplace_back(name_of(kind), kind);
  return choice;
}

void add_backend(Flags flags, ModelOptions& o) {
  Choice<BackendKind> choice = backends(o.run.backend);
  choice.words.insert(choice.words.begin(), {"auto", BackendKind::kAuto});
  add_choice(flags, "--backend", choice,
             "auto: cuda where the card has room for the model, else cpu; reference: slow, exact");
  flags.group(HelpGroup::kPerformance);
  flags.turn(
      "--fast", o.run.fast,
      "cpu, cuda: lossy: dense layers, activations and KV cache in the formats that are fastest here and cost less "
      "than 1 % of perplexity on nibble-tiny; says which");
  flags.group(HelpGroup::kCommon);
}

}  // namespace nibble::app
