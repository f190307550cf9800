// The options of commands that have a model: which one, where and how it runs, how tokens are drawn, what is printed.

#include "app/options/option_rows.h"
#include "backend/activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace nibble::app {
namespace {

using enum CommandId;
using enum HelpGroup;
using enum Effect;
using enum Runs;
using backend::Activations;
using backend::AttentionActivations;
using backend::AttentionKernel;
using backend::CpuIsa;
using backend::KernelFamily;
using backend::MoeTile;
using backend::RunConfig;
using backend::ScreenedHead;
using backend::WeightFormat;
using engine::DraftMethod;
using engine::SpeculationLimits;
using model::eagle3::TapReading;

constexpr Commands kAnswers{kRun, kChat, kServe};
constexpr Commands kRunsModel = kAnswers | Commands{kPerplexity, kBench, kVerify};
constexpr Commands kComputes = kRunsModel | Commands{kCompare};
constexpr Commands kNamesModel{kRun, kChat, kInspect, kPerplexity, kCompare, kConvert, kBench};
constexpr Commands kPlans{kInspect, kPredict};

constexpr Places kOnCpu{kYes, kNo, kNo, kNo};
constexpr Places kOnArm{kNotRun, kNo, kNo, kNo};  // nothing but an emulator has run them
constexpr Places kOnCards{kNo, kYes, kYes, kNotRun};
constexpr Places kOnHopperAlone{kNo, kNotRun, kYes, kNotRun};
constexpr Places kOnSm121{kNo, kNo, kNo, kNotRun};
constexpr Places kOfHost{kYes, kNotRun, kNotRun, kNotRun};  // cards would do the same, nobody has tried
constexpr Places kRoundedFirst{kAsValues, kAsValues, kAsValues, kNotRun};
constexpr Places kRoundedToFp8{kAsValues, kAsValues, kYes, kNotRun};

constexpr Word kLoadFormats[] = {word("auto", LoadFormat::kAuto), word("safetensors", LoadFormat::kSafetensors),
                                 word("gguf", LoadFormat::kGguf), word("dummy", LoadFormat::kDummy)};
constexpr Word kExpertFormats[] = {{"auto", -1},
                                   word("mxfp4", WeightFormat::kGgmlMxfp4),
                                   word("q8_0", WeightFormat::kGgmlQ8),
                                   word("bf16", WeightFormat::kBf16)};
constexpr Word kPulls[] = {word("true", WhenAbsent::kPull)};
constexpr Word kBackendWords[] = {word(BackendKind::kAuto, kAsChosen), word(BackendKind::kCpu, kAsChosen, kOnCpu),
                                  word(BackendKind::kCuda, kAsChosen, kOnCards),
                                  word(BackendKind::kReference, kUnrounded, kOnCpu)};
constexpr auto kKvTypes = [] {
  std::array<Word, backend::kKvDtypes + 1> all{{{"auto", -1}}};
  for (const backend::KvType& t : backend::kKvTypes)
    all[1 + static_cast<size_t>(t.dtype)] =
        word(t.word, t.dtype, t.lossy ? kRounded : kUnrounded, t.on.has(BackendKind::kCuda) ? Places{} : kOnCpu);
  return all;
}();
constexpr Word kAttentions[] = {word(AttentionKernel::kAuto), word(AttentionKernel::kFlash, kUnrounded, kOnCards),
                                word(AttentionKernel::kReference, kUnrounded, kOnCards)};
constexpr Word kAttentionActivations[] = {
    word(AttentionActivations::kAuto), word(AttentionActivations::kBf16),
    word(AttentionActivations::kFp8, kRounded, kRoundedFirst, "--kv-cache-dtype fp8")};
constexpr Word kMoeActivations[] = {word(Activations::kAuto, kAsChosen),
                                    word(Activations::kF32, kUnrounded, kOnCpu),
                                    word(Activations::kBf16),
                                    word(Activations::kInt8, kRounded, kOnCpu),
                                    word(Activations::kMxfp8, kRounded, kRoundedToFp8),
                                    word(Activations::kMxfp6, kRounded, kRoundedFirst),
                                    word(Activations::kMxfp4, kRounded, kRoundedFirst)};
static_assert(std::size(kMoeActivations) == std::size(backend::kActivationTypes));
constexpr Word kDenseActivations[] = {word(Activations::kAuto, kAsChosen), word(Activations::kBf16),
                                      word(Activations::kMxfp8, kRounded, kRoundedFirst, "--mxfp4-layers all")};
constexpr Word kIsas[] = {word(CpuIsa::kAuto),
                          word(CpuIsa::kBaseline, kUnrounded, kOnCpu),
                          word(CpuIsa::kAvx2, kUnrounded, kOnCpu),
                          word(CpuIsa::kAvxVnni, kUnrounded, kOnCpu),
                          word(CpuIsa::kAvx512, kUnrounded, kOnCpu),
                          word(CpuIsa::kAmx, kUnrounded, kOnCpu),
                          word(CpuIsa::kDotProd, kUnrounded, kOnArm),
                          word(CpuIsa::kI8mm, kUnrounded, kOnArm)};
constexpr Word kMoeKernels[] = {
    word(KernelFamily::kAuto, kAsChosen), word(KernelFamily::kStreaming, kUnrounded, kOnCards),
    word(KernelFamily::kGemm, kUnrounded, kOnCards), word(KernelFamily::kReference, kUnrounded, kOnCards)};
constexpr Word kScreenedHeads[] = {word(ScreenedHead::kAuto), word(ScreenedHead::kOff)};
constexpr Word kMoeTiles[] = {word(MoeTile::kAuto),
                              word(MoeTile::k64x128, kAsChosen, kOnSm121, "--moe-activation mxfp8"),
                              word(MoeTile::k128x128, kAsChosen, kOnSm121, "--moe-activation mxfp8")};
constexpr Word kLayers[] = {{"qkv", 0, kRounded}, {"o", 0, kRounded}, {"lm_head", 0, kRounded}, {"all", 0, kRounded}};
constexpr Word kQ8Layers[] = {{"auto"},
                              {"none", 0, kUnrounded, kOnCards},
                              {"qkv", 0, kRounded, kOnHopperAlone},
                              {"o", 0, kRounded, kOnHopperAlone},
                              {"lm_head", 0, kRounded, kOnHopperAlone},
                              {"all", 0, kRounded, kOnHopperAlone}};
constexpr Word kFast[] = {{"false"}, {"true", 1, kRounded}};
constexpr Word kEager[] = {{"false"}, {"true", 1, kUnrounded, kOnCards}};
constexpr Word kCopies[] = {{"false"}, {"true", 1, kUnrounded, kOnCpu}};
constexpr Word kSinks[] = {{"on", 1}, {"off", 0, kRounded}, {"auto", 1}};
constexpr Word kRankCounts[] = {{"1"}, {"2", 2, kUnrounded, kOnHopper}};
constexpr Word kWholeExperts[] = {{"false"}, {"true", 1, kUnrounded, kOnHopper, "--tensor-parallel-size 2"}};
constexpr Word kMethods[] = {
    word(DraftMethod::kOff),
    word("auto", DraftMethod::kSuffix, kUnrounded, kOnHopper),
    word(DraftMethod::kNgram, kUnrounded, kOfHost),
    word(DraftMethod::kSuffix, kUnrounded, kOnHopper),
    word(DraftMethod::kEagle3, kUnrounded, kOnHopper, "--speculative-model models/nibble-tiny/eagle3"),
    word(DraftMethod::kDraft, kUnrounded, kOnHopper, "--speculative-model models/nibble-tiny")};
constexpr Word kGuesses[] = {
    {"8", 8, kUnrounded, kOfHost}, {"1", 1, kUnrounded, kOfHost}, {"32", 32, kUnrounded, kOfHost}};
constexpr Word kHeads[] = {{"models/nibble-tiny/eagle3", 0, kUnrounded, kOnHopper, "--speculative eagle3"},
                           {"models/nibble-tiny", 0, kUnrounded, kOnHopper, "--speculative draft"}};
constexpr Word kControls[] = {{"auto", 1, kUnrounded, kOnHopper},
                              {"off", 0, kUnrounded, kOfHost, "--speculative suffix"}};
constexpr std::string_view kWithHead = "--speculative eagle3 --speculative-model models/nibble-tiny/eagle3";
constexpr Word kTapReadings[] = {word("auto", TapReading::kAuto),
                                 word("outputs", TapReading::kOutputs, kUnrounded, kOfHost, kWithHead),
                                 word("boundaries", TapReading::kBoundaries, kUnrounded, kOfHost, kWithHead)};
constexpr Word kLookupMost[] = {{"5", 5, kUnrounded, kOfHost}, {"16", 16, kUnrounded, kOfHost}};
constexpr Word kLookupLeast[] = {{"2", 2, kUnrounded, kOfHost}, {"1", 1, kUnrounded, kOfHost}};
constexpr Word kColors[] = {word("auto", ColorMode::kAuto), word("always", ColorMode::kAlways),
                            word("never", ColorMode::kNever)};

// "qkv,o", of the layers in one of both formats; experts stay MXFP4.
template <WeightFormat kFormat>
std::string layers_in(const ValueRef& slot) {
  const backend::DenseFormats& dense = *std::get<backend::DenseFormats*>(slot);
  std::string layers;
  for (const auto& [name, held] : {std::pair{"qkv", dense.qkv}, {"o", dense.o}, {"lm_head", dense.lm_head}})
    if (held == kFormat) layers += fmt::format("{}{}", layers.empty() ? "" : ",", name);
  return layers;
}

template <WeightFormat kFormat>
void read_layers(std::string_view flag, const std::string& found, const ValueRef& slot) {
  constexpr bool kMayBeMoe = kFormat == WeightFormat::kMxfp4;
  backend::DenseFormats& dense = *std::get<backend::DenseFormats*>(slot);
  for (const std::string& name : split(found, ',')) {
    const auto set = [&](std::string_view layer, std::optional<WeightFormat>& format) {
      if (name != layer && name != "all") return;
      if (format && *format != kFormat) refuse_value(flag, fmt::format("{} is in two formats", layer));
      format = kFormat;
    };
    const bool known = std::ranges::find(kLayers, name, &Word::word) != std::end(kLayers);
    if (!known && !(kMayBeMoe && name == "moe"))
      refuse_value(flag,
                   fmt::format("want a list of {}qkv, o, lm_head, or all; found {}", kMayBeMoe ? "moe, " : "", name));
    set("qkv", dense.qkv);
    set("o", dense.o);
    set("lm_head", dense.lm_head);
  }
}

// The layers' list; without one auto or none, by whether a file's Q8_0 may be held so.
std::string q8_layers(const ValueRef& slot) {
  const std::string layers = layers_in<WeightFormat::kGgmlQ8>(slot);
  return !layers.empty() ? layers : std::get<backend::DenseFormats*>(slot)->keeps_q8 ? "auto" : "none";
}

void read_q8_layers(std::string_view flag, const std::string& found, const ValueRef& slot) {
  backend::DenseFormats& dense = *std::get<backend::DenseFormats*>(slot);
  for (std::optional<WeightFormat>* const format : {&dense.qkv, &dense.o, &dense.lm_head})
    if (*format == WeightFormat::kGgmlQ8) format->reset();
  dense.keeps_q8 = found == "auto";
  if (found != "auto" && found != "none") read_layers<WeightFormat::kGgmlQ8>(flag, found, slot);
}

// A CPU resolves to what no word asks for.
std::string shown_activation(const ValueRef& value) {
  const WordRef& word = std::get<WordRef>(value);
  return std::string(name_of(static_cast<Activations>(word.get(word.at))));
}

std::string shown_or_auto(const ValueRef& value) {
  const int number = *std::get<int*>(value);
  return number < 0 ? "auto" : fmt::format("{}", number);
}

void read_bias(std::string_view flag, const std::string& found, const ValueRef& slot) {
  const size_t colon = std::min(found.find(':'), found.size());
  const auto id = number_in<int32_t>(found.substr(0, colon));
  const auto bias = number_in<float>(found.substr(std::min(colon + 1, found.size())));
  if (!id || !bias) refuse_value(flag, "want ID:BIAS such as 200002:-100, found " + found);
  std::get<std::vector<std::pair<int32_t, float>>*>(slot)->emplace_back(*id, *bias);
}

std::string other_models(CommandId command) {
  switch (command) {
    case kServe: return "; default: the small one that comes with nibble";
    case kVerify: return "; with --load-format dummy also tiny; default: the small one that comes with nibble";
    case kPredict: return "; default gpt-oss-120b. Nothing is read but its configuration";
    default: return "; with --load-format dummy also tiny";
  }
}

std::string usual_context(CommandId command) {
  switch (command) {
    case kRun: return "4096 or what -n needs";
    case kPerplexity: return "--context";
    case kBench: return "the model's";
    default: return "8192";
  }
}

}  // namespace

std::string usual_step(CommandId /*command*/) {
  return fmt::format("{}, with --backend cuda {}", backend::kHostStepTokens, backend::kCardStepTokens);
}

namespace {

std::string usual_share(CommandId /*command*/) { return fmt::format("{}", backend::kGpuMemoryUtilization); }

constexpr backend::BackendSet kCpuOnly{BackendKind::kCpu}, kCudaOnly{BackendKind::kCuda};

constexpr Option kModelRows[] = {
    Option("-h,--help", "Print this help message and exit", {}, kSwitch, kEveryCommand),
    Option("-p,--prompt", "Text to continue", kPlace<&TextInput::text>, kText, {kRun}),
    Option("-p,--prompt", "Ask one question and exit", kPlace<&TextInput::text>, kText, {kChat}),
    Option("-p,--prompt", "Text to tokenise (default: standard input)", kPlace<&TextInput::text>, kText, {kTokenize}),
    Option("-p,--prompt", "Text to score", kPlace<&TextInput::text>, kText, {kPerplexity}),
    Option("-p,--prompt", "Text of the step (default: a built-in sentence)", kPlace<&TextInput::text>, kText,
           {kCompare}),
    Option("-f,--file", "The same from a file; - is standard input", kPlace<&TextInput::file>, kFilled,
           {kRun, kChat, kTokenize, kPerplexity, kCompare}, kCommon, {.excludes = "--prompt"}),
    Option("-m,--model", "Folder, .gguf file or name such as gpt-oss-20b (docs/models.md){}",
           kPlace<&ModelOptions::model>, kFilled, kNamesModel | Commands{kServe, kPredict, kVerify}, kCommon,
           {.fill = other_models}),
    Option("NAME", "The same without --model", {}, kFilled, kNamesModel | Commands{kServe, kPredict, kVerify}),
    Option("TEXT", "The same without --prompt", {}, kText, {kRun, kChat}),
    Option("--revision", "Branch, tag or commit of a model of the Hub; default: main, or what there is",
           kPlace<&ModelOptions::revision>, kFilled, kNamesModel | Commands{kServe}, kExpert),
    Option("--load-format",
           "dummy: random weights of the right shapes, nothing read but config.json or a GGUF file's keys",
           kPlace<&ModelOptions::load_format>, words(kLoadFormats), kNamesModel | Commands{kServe, kVerify}, kExpert),
    Option(
        "--expert-format",
        "What experts in floats or other blocks of llama.cpp's become; auto: floats of safetensors mxfp4, GGUF's q8_0",
        kPlace<&ModelOptions::expert_format>, words(kExpertFormats), kComputes | Commands{kInspect}, kPerformance,
        {.alike = Alike::kInAllRanks})};

constexpr Option kRunRows[] = {
    Option("-y,--pull", "First get the model from the Hub if it is not here", kPlace<&ModelOptions::when_absent>,
           such_as(kSwitch, kPulls), kAnswers | Commands{kVerify}),
    Option("-n,--max-tokens", "Most tokens to generate; 0: until the model stops", kPlace<&GenerateOptions::max_tokens>,
           whole(0, 1 << 24), {kRun, kChat}, kCommon,
           {.foreign = "--n-predict --predict --num-predict", .shown = true}),
    // The numbers of SamplingParams stand here: add_sampling_row().
    Option("--logit-bias", "ID:BIAS, repeatable", kPlace<&backend::SamplingParams::logit_bias>,
           repeated(own(read_bias)), {kRun, kChat}, kSampling),
    Option("--seed", "Same seed, same text; default: random, shown in the summary",
           kPlace<&backend::SamplingParams::seed>, kSeeds, {kRun, kChat}, kSampling, {.foreign = "-s"}),
    Option("--stop", "Stop before this text; repeatable", kPlace<&GenerateOptions::stop>, repeated(kFilled),
           {kRun, kChat}, kSampling),
    Option("--ignore-eos", "Do not stop at the model's end tokens", kPlace<&GenerateOptions::ignore_eos>, kSwitch,
           {kRun, kChat}, kSampling),
    Option("--special", "Recognise special tokens such as <|start|> in the prompt", kPlace<&RunOptions::special>,
           kSwitch, {kRun}, kExpert),
    Option("--backend", "auto: cuda where the card has room for the model, else cpu; reference: slow, exact",
           kPlace<&RunConfig::backend>, words(kBackendWords), kRunsModel | Commands{kInspect}, kCommon,
           {.alike = Alike::kInAllRanks,
            .feature = {"backend", "", "cuda wants a build with CUDA and a card from Ampere on",
                        "Nothing has run on a GB10"}}),
    Option(
        "--fast",
        "cpu, cuda: lossy: dense layers, activations and KV cache in the formats that are fastest here and cost less than "
        "1 % of perplexity on nibble-tiny; says which",
        kPlace<&RunConfig::fast>, such_as(kSwitch, kFast), kRunsModel | Commands{kInspect}, kPerformance,
        {.on = {BackendKind::kCpu, BackendKind::kCuda},
         .feature = {"fast", "", "alone: it chooses activations, layers and KV type",
                     "What it chooses was measured on nibble-tiny"}}),
    Option("--dummy-seed", "Seed of the dummy weights", kPlace<&ModelOptions::dummy_seed>, kSeeds, kComputes, kExpert),
    Option("-t,--threads", "Threads; 0: one per core", kPlace<&RunConfig::threads>, whole(0, 1024),
           kComputes | Commands{kInspect}),
    Option(
        "--kv-cache-dtype",
        "Keys and values; auto: bf16, for compare f32; fp8: E4M3, lossy; int8 (cpu, reference): with a scale per head and "
        "token, lossy",
        kPlace<&RunConfig::kv>, words(kKvTypes), kComputes | kPlans, kPerformance,
        {.on_value = [](const RunConfig& run) { return type_of(run.kv_type()).on; },
         .alike = Alike::kInAllRanks,
         .feature = {"kv", "", "", "fp8 on Hopper: prompts' attention uses the kernels of every card"}}),
    Option("--attention-backend",
           "Attention kernels of cuda; auto: flash where it serves the shapes and pages of bf16 or fp8",
           kPlace<&RunConfig::attention>, words(kAttentions), kComputes | kPlans, kExpert,
           {.on = kCudaOnly,
            .alike = Alike::kInAllRanks,
            .foreign = "--attention-config.backend VLLM_ATTENTION_BACKEND",
            .feature = {"attention", "", "flash: head_dim 64, pages of bf16 or fp8",
                        "Pages of fp8 are widened, except with --attention-activation fp8"}}),
    Option(
        "--attention-activation",
        "What attention multiplies; auto, bf16: queries and weights of 16 bits or better; fp8: both rounded to E4M3, "
        "lossy, with --kv-cache-dtype fp8: cuda multiplies prompts' attention in that format, from compute capability 8.9 "
        "on but for Hopper; all else computes the same numbers as if they were exact",
        kPlace<&RunConfig::attention_activations>, words(kAttentionActivations), kComputes | kPlans, kExpert,
        {.alike = Alike::kInAllRanks,
         .feature = {"attention-activation", "", "fp8 on cards: what --attention-backend flash wants",
                     "Cards from 8.9 on, except Hopper, multiply prompts' attention in FP8; none of them has run it"}}),
    Option(
        "--moe-activation",
        "What the experts multiply; auto: cpu: int8 where there are instructions for it, else f32; others: exact; bf16: 16 "
        "bits or better, exact: cuda f16, others float; f32 (cpu): exact; int8 (cpu: also what Q8_0 weights multiply; "
        "faster, lossy; prompts on AMX: bf16); mxfp8, mxfp6, mxfp4: rounded to E4M3, E2M3, "
        "E2M1 in blocks of 32, lossy; cuda of compute capability 12 multiplies prompts in these formats, Hopper in mxfp8, "
        "all others as if they were exact: for comparison, not faster; steps of up to 8 tokens are exact on cuda, "
        "with auto kernels on Hopper those of up to 16 tokens an expert",
        kPlace<&RunConfig::activations>, words(kMoeActivations), kComputes | kPlans, kExpert,
        {.on_value = [](const RunConfig& run) { return type_of(run.activations).on; },
         .alike = Alike::kInAllRanks,
         .foreign = "VLLM_MXFP4_ACTIVATION",
         .feature =
             {"activation", "", "int8 on a CPU wants AVX2, or SDOT on Arm",
              "auto is int8, so lossy, where a CPU has it. int8: a token's last bits depend on how many share its "
              "step. mxfp8 on SM90: with --moe-kernel auto up to 16 pairs an expert are exact; experts whose scales are more "
              "than 2^16 apart are multiplied as values"}}),
    Option(
        "--dense-activation",
        "What dense layers multiply; auto: exact, on a cpu int8 where the experts' are; bf16: 16 bits or better, exact; "
        "mxfp8: layers of --mxfp4-layers and --mxfp8-layers multiply activations rounded to E4M3 in blocks of 32, lossy; "
        "cuda of compute capability 12 multiplies prompts in that format, all others as if they were exact; steps of up to "
        "8 tokens are exact on cuda",
        kPlace<&RunConfig::dense_activations>, shown_by(words(kDenseActivations), shown_activation), kComputes | kPlans,
        kExpert,
        {.alike = Alike::kInAllRanks,
         .feature =
             {"dense-activation", "", "mxfp8: layers of --mxfp4-layers or --mxfp8-layers",
              "auto follows --moe-activation int8 on a CPU. Its test on a card has not been watched to the end"}}),
    Option("--cpu-isa", "CPU: instruction set; auto: the best there is", kPlace<&RunConfig::isa>, words(kIsas),
           kComputes | Commands{kInspect}, kExpert,
           {.on = kCpuOnly, .alike = Alike::kInAllRanks, .feature = {"isa", "", "a CPU that has it"}}),
    Option(
        "--moe-kernel",
        "cuda: who multiplies; marlin: streaming kernels for few tokens (moe_up, moe_down, grouped, gemv); gemm: those up "
        "to 8 tokens, tensor-core GEMMs for more; auto: each where it is faster; reference: plain loops (any_moe_*, "
        "any_linear)",
        kPlace<&RunConfig::family>, words(kMoeKernels), kComputes | kPlans, kExpert,
        {.on = kCudaOnly,
         .alike = Alike::kInAllRanks,
         .foreign = "VLLM_MXFP4_MOE_KERNEL",
         .feature = {"kernel", "", "marlin and gemm want shapes that can be packed",
                     "With a scale above 2^4 in any MXFP4 matrix, all GEMMs of its packing run as any_gemm: slower, "
                     "exact"}}),
    Option(
        "--moe-tile",
        "cuda, compute capability 12, with --moe-activation mxfp8, mxfp6 or mxfp4: tokens x rows of a tile where GEMMs "
        "multiply the experts; auto: by how many tokens an expert has",
        kPlace<&RunConfig::moe_tile>, words(kMoeTiles), kComputes | kPlans, kExpert,
        {.on = kCudaOnly,
         .alike = Alike::kInAllRanks,
         .feature = {"tile", "", "a card of compute capability 12, --moe-kernel auto or gemm",
                     "Not measured: where 128 tokens are the better tile"}}),
    Option(
        "--screened-head",
        "Up to 8 tokens drawn by temperature alone (cpu: 4 without filters): auto: only rows of the unembedding that may win "
        "are computed, found by a copy in 7 bits (cpu: 6; 0.5 GB, where memory has the room); the same tokens; off: all "
        "rows",
        kPlace<&RunConfig::screened_head>, words(kScreenedHeads), kComputes | kPlans, kExpert,
        {.on = {BackendKind::kCpu, BackendKind::kCuda},
         .alike = Alike::kInAllRanks,
         .feature = {"screened-head", "", "bf16 lm_head (cpu: Q8_0 too), one rank, 20 GB of memory"}}),
    Option("--enforce-eager,!--no-enforce-eager", "cuda: launch every kernel of a step; no CUDA graphs",
           kPlace<&RunConfig::eager>, such_as(kSwitch, kEager), kComputes | kPlans, kExpert,
           {.on = kCudaOnly, .alike = Alike::kInAllRanks, .feature = {"eager", "", ""}}),
    Option(
        "--mxfp4-layers",
        "Dense layers to requantise while loading (lossy): qkv,o,lm_head or all; moe, the experts, is MXFP4 as it comes",
        kPlace<&RunConfig::dense>,
        such_as(own(read_layers<WeightFormat::kMxfp4>, layers_in<WeightFormat::kMxfp4>), kLayers), kComputes | kPlans,
        kPerformance,
        {.alike = Alike::kInAllRanks,
         .feature = {"mxfp4-layers", "none", "one format a layer; a list with commas",
                     "32 sequences of 20b on an H100 are slower with all layers than in bf16"},
         .type = "LIST"}),
    Option("--mxfp8-layers", "Dense layers to requantise while loading (lossy): qkv,o,lm_head or all",
           kPlace<&RunConfig::dense>,
           such_as(own(read_layers<WeightFormat::kMxfp8>, layers_in<WeightFormat::kMxfp8>), kLayers),
           kComputes | kPlans, kPerformance,
           {.alike = Alike::kInAllRanks, .feature = {"mxfp8-layers", "none", "as --mxfp4-layers"}, .type = "LIST"}),
    Option(
        "--q8-layers",
        "cuda: dense layers held in Q8_0, for up to 8 tokens a step, and in bf16, for more: qkv,o,lm_head or all (lossy "
        "where the file has no Q8_0); none; auto: those that the file has in Q8_0, where there is room (120b: 1 GB)",
        kPlace<&RunConfig::dense>, such_as(own(read_q8_layers, q8_layers), kQ8Layers), kComputes | kPlans, kPerformance,
        {.on = kCudaOnly,
         .alike = Alike::kInAllRanks,
         .feature = {"q8-layers", "", "--moe-kernel auto or gemm",
                     "Draft models stay in bf16, and below 1 TB/s a screened lm_head"},
         .type = "LIST"}),
    Option(
        "--n-cpu-moe",
        "cuda, one card: the experts of so many layers, the first ones, stay in the host's memory, and its threads compute "
        "them; auto: as few as let the model fit the card, 0 where all fits; more than there are: all",
        kPlace<&RunConfig::cpu_moe_layers>, shown_by(whole(0, 1024, "auto"), shown_or_auto), kComputes | kPlans,
        kPerformance, {.on = kCudaOnly, .foreign = "-ncmoe"}),
    Option(
        "--expert-copy-tokens",
        "cuda, with experts on the host: steps of at least so many tokens have them copied to the card, which computes "
        "them; 0: none has; auto: those for which that is faster",
        kPlace<&RunConfig::expert_copy_tokens>, shown_by(whole(0, 65536, "auto"), shown_or_auto), kComputes | kPlans,
        kPerformance, {.on = kCudaOnly}),
    Option(
        "--tensor-parallel-size",
        "Ranks that share every step, each with its part of all weights and its heads' keys and values. cuda: a card for "
        "each, up to 8 of one machine that reach each other's memory; cpu, reference: they divide the threads",
        kPlace<&backend::Ranks::count>, such_as(whole(1, 1024), kRankCounts), kComputes | kPlans, kPerformance,
        {.alike = Alike::kInAllRanks,
         .foreign = "-tp",
         .feature = {"tp", "", "a number of ranks that the heads divide into; on cards, one card each",
                     "Ranks of a CPU divide its threads: nothing gets faster"},
         .shown = true}),
    Option("--enable-expert-parallel,!--no-enable-expert-parallel",
           "With --tensor-parallel-size: a rank has some experts whole instead of a part of each",
           kPlace<&backend::Ranks::whole_experts>, such_as(kSwitch, kWholeExperts), kComputes | kPlans, kPerformance,
           {.alike = Alike::kInAllRanks, .foreign = "-ep", .feature = {"ep"}}),
    Option(
        "--no-mmap",
        "CPU: weights are copied to memory of their own, on huge pages: reads are faster, the start is slower, and nothing "
        "is shared with other processes",
        kPlace<&RunConfig::copy_weights>, such_as(kSwitch, kCopies), kComputes, kPerformance,
        {.on = kCpuOnly, .feature = {"no-mmap", "", "memory for the weights once more", "Start-up is slower"}}),
    Option("--attention-sinks", "off shows what the model loses without them", kPlace<&RunConfig::sinks>, words(kSinks),
           kComputes, kExpert,
           {.alike = Alike::kInAllRanks,
            .foreign = "VLLM_ATTENTION_SINKS VLLM_USE_ATTENTION_SINKS",
            .feature = {"sinks", "", "", "off gives another model's text: gpt-oss was trained with sinks"}}),
    Option(
        "--nnodes",
        "Processes that share every step, here or on several machines, each one rank of --tensor-parallel-size; with "
        "--backend cuda each has a card, and NCCL adds up; also from WORLD_SIZE (docs/several-gpus.md)",
        kPlace<&GroupOptions::count>, whole(1, 1024), {kRun, kServe}, kExpert, {.foreign = "-n", .shown = true}),
    Option("--node-rank", "Which of them this is: 0 serves or prints, the others follow it; also from RANK",
           kPlace<&GroupOptions::rank>, whole(0, 1023), {kRun, kServe}, kExpert, {.foreign = "-r", .shown = true}),
    Option("--master-addr", "Where rank 0 waits for the others; also from MASTER_ADDR", kPlace<&GroupOptions::address>,
           kFilled, {kRun, kServe}, kExpert),
    Option("--master-port", "Its port, beside the one of HTTP; also from MASTER_PORT", kPlace<&GroupOptions::port>,
           whole(1, 65535), {kRun, kServe}, kExpert, {.shown = true}),
    Option("--distributed-timeout-seconds", "Until all ranks must have come", kPlace<&GroupOptions::timeout>,
           whole(1, 86400), {kRun, kServe}, kExpert, {.shown = true}),
    Option("--print-config", "Show the settings and where each came from, and exit", kPlace<&Settings::print>, kSwitch,
           kRunsModel),
    Option("--max-model-len", "Context in tokens: prompt and answer together", kPlace<&RunConfig::max_model_len>,
           sized(1, 1 << 24), {kRun, kChat, kPerplexity, kBench, kVerify}, kCommon,
           {.foreign = "-c --ctx-size --num-ctx", .usual = "{}", .fill = usual_context}),
    Option("--max-model-len", "Context in tokens: prompt and answer together", kPlace<&RunConfig::max_model_len>,
           sized(1, 1 << 24, "auto"), {kServe}, kCommon,
           {.foreign = "-c --ctx-size --num-ctx", .usual = "the model's"}),
    Option("--max-num-batched-tokens", "Most tokens in one step: of prompts, and one of each stream",
           kPlace<&RunConfig::max_num_batched_tokens>, sized(1, 65536), kRunsModel | Commands{kPredict}, kPerformance,
           {.foreign = "--ubatch-size -ub", .shown = true, .usual = "{}", .fill = usual_step}),
    Option("--gpu-memory-utilization", "Share of the card's memory to use at most, with --backend cuda; default {}",
           kPlace<&RunConfig::gpu_memory_utilization>, real(0.01, 1), kRunsModel, kPerformance,
           {.on = kCudaOnly, .foreign = "--device-memory-utilization", .fill = usual_share}),
    Option("--gpu-memory-utilization", "Share of the card's memory to use at most; default {}",
           kPlace<&RunConfig::gpu_memory_utilization>, real(0.01, 1), {kPredict}, kPerformance, {.fill = usual_share}),
    Option(
        "--speculative",
        "Guess tokens and verify several in a step, as many as pay; the output stays as it is. ngram: from the text so "
        "far; suffix, auto: from past answers as well; eagle3: by a head that reads the model (EAGLE-3, P-EAGLE); draft: "
        "by another model (docs/speculation.md)",
        kPlace<&SpeculationLimits::method>, words(kMethods), kAnswers, kPerformance,
        {.feature = {"speculation", "", "run, chat and serve",
                     "On a card, a step with more than 7 guesses of a sequence runs without a CUDA graph"}}),
    Option(
        "--speculative",
        "Instead: what steps with guesses take, from which acceptance on they pay, and what they give. The proposer named "
        "drafts for --speculative-texts; eagle3: a dummy head of the model's shape drafts, and its time counts; draft: so "
        "does the one named",
        kPlace<&SpeculationLimits::method>, words(kMethods), {kBench}, kPerformance),
    Option("--speculative-tokens", "Most guesses of a sequence in a step", kPlace<&SpeculationLimits::most_tokens>,
           such_as(whole(1, engine::kMostDrafted), kGuesses), kAnswers | Commands{kBench}, kPerformance,
           {.foreign = "--speculative-config.num_speculative_tokens --spec-tokens",
            .feature = {"guesses", "", "--speculative"},
            .shown = true}),
    Option("--prompt-lookup-max", "ngram: most last tokens that are looked up", kPlace<&SpeculationLimits::most_lookup>,
           such_as(whole(1, engine::kMostLookup), kLookupMost), kAnswers | Commands{kBench}, kExpert,
           {.foreign = "--speculative-config.prompt_lookup_max",
            .feature = {"lookup-max", "", "--speculative ngram"},
            .shown = true}),
    Option("--prompt-lookup-min", "ngram: least last tokens that are looked up",
           kPlace<&SpeculationLimits::least_lookup>, such_as(whole(1, engine::kMostLookup), kLookupLeast),
           kAnswers | Commands{kBench}, kExpert,
           {.foreign = "--speculative-config.prompt_lookup_min",
            .feature = {"lookup-min", "", "--speculative ngram"},
            .shown = true}),
    Option("--speculative-model",
           "eagle3: the head's directory, with config.json and model.safetensors; draft: a smaller model of the same "
           "vocabulary, named as with --model",
           kPlace<&ModelOptions::speculative_model>, such_as(kFilled, kHeads), kAnswers, kPerformance,
           {.foreign = "--speculative-config.model --spec-model",
            .feature =
                {"head", "none",
                 "--speculative eagle3: a directory with an EAGLE-3 or P-EAGLE head of the model; draft: a model of "
                 "the same vocabulary",
                 "No published head of gpt-oss was run"}}),
    Option("--speculative-model", "draft: the model that drafts", kPlace<&ModelOptions::speculative_model>, kFilled,
           {kBench}, kPerformance, {.needs = "--speculative"}),
    Option("--speculative-control",
           "auto: verify the guesses that pay by measured times, none too; off: verify all that are made",
           kPlace<&SpeculationLimits::adaptive>, words(kControls), kAnswers, kExpert,
           {.feature = {"guess-control", "", "--speculative",
                        "off can lose: it is for measurements and for proof that guesses are verified"}}),
    Option(
        "--speculative-tap-reading",
        "eagle3: what the head's layer ids name: outputs of layers, or boundaries before them; auto: boundaries where the "
        "last id is the number of layers",
        kPlace<&ModelOptions::tap_reading>, words(kTapReadings), kAnswers, kExpert,
        {.feature = {"tap-reading", "", "--speculative eagle3"}}),
    Option("--json", "Print one JSON object instead of text", kPlace<&OutputOptions::json>, kSwitch, kPrints),
    Option("--json", "Print one JSON object instead of text", kPlace<&OutputOptions::json>, kSwitch, {kBench}, kCommon,
           {.excludes = "--output"}),
    Option("-q,--quiet", "No progress and no summary", kPlace<&OutputOptions::quiet>, kSwitch,
           kPrints | Commands{kBench}),
    Option("-v,--verbose", "Tell how the model is run", kPlace<&OutputOptions::verbose>, kSwitch,
           {kRun, kChat, kPerplexity}),
    Option("--color", "Colours; auto: on a terminal, unless NO_COLOR is set", kPlace<&OutputOptions::color>,
           words(kColors), kPrints | Commands{kBench}, kExpert)};

static_assert(has_rows<backend::RunConfig, &RunConfig::ranks, &RunConfig::poison, &RunConfig::rounds_pages,
                       &RunConfig::cpu_moe_activations>(kModelRows, kRunRows));
static_assert(has_rows<backend::Ranks>(kRunRows));
static_assert(has_rows<SpeculationLimits, &SpeculationLimits::head, &SpeculationLimits::draft_model>(kRunRows));
static_assert(
    has_rows<ModelOptions, &ModelOptions::settings, &ModelOptions::name, &ModelOptions::hub, &ModelOptions::run,
             &ModelOptions::backend_why, &ModelOptions::fast_why, &ModelOptions::offload_why, &ModelOptions::left_out,
             &ModelOptions::group, &ModelOptions::cards, &ModelOptions::speculation>(kModelRows, kRunRows));
static_assert(has_rows<GroupOptions, &GroupOptions::card>(kRunRows));
static_assert(has_rows<GenerateOptions, &GenerateOptions::sampling>(kRunRows));
static_assert(has_rows<OutputOptions, &OutputOptions::dumb_terminal>(kRunRows));
static_assert(has_rows<TextInput, &TextInput::given>(kModelRows));

// The numbers of SamplingParams, whose rows are in backend/sampling.h.
template <size_t kAt>
ValueRef sampling_ref(const Parts& parts) {
  ValueRef slot;
  if (backend::SamplingParams* const params = std::get<backend::SamplingParams*>(parts); params != nullptr)
    std::visit([&](const auto member) { slot = &(params->*member); }, backend::kSamplingFields[kAt].member);
  return slot;
}

template <size_t kAt>
void add_sampling_row(std::vector<Option>& rows) {
  static const backend::SamplingField& field = backend::kSamplingFields[kAt];
  static const std::string flag = [] {
    std::string name = fmt::format("--{}", field.name);
    std::ranges::replace(name, '_', '-');
    return name;
  }();
  static const std::string of_server = fmt::format("{}, where a request does not say", field.help);
  static const std::string foreign = fmt::format("--override-generation-config.{}{}", field.name,
                                                 field.name == "temperature"          ? " --temp"
                                                 : field.name == "repetition_penalty" ? " --repeat-penalty"
                                                                                      : "");
  const bool is_whole = std::holds_alternative<int backend::SamplingParams::*>(field.member);
  Option row{
      flag,
      field.help,
      {&sampling_ref<kAt>, {}},
      is_whole ? whole(static_cast<int64_t>(field.range.least), static_cast<int64_t>(field.range.most)) : kFinite,
      {kRun, kChat},
      kAt == 0 ? kCommon : kSampling,
      {.foreign = foreign, .shown = true}};
  rows.push_back(row);
  row.help = of_server;
  row.commands = {kServe};
  row.group = kSampling;
  rows.push_back(row);
}

}  // namespace

std::span<const Option> model_rows() { return kModelRows; }

std::vector<Option> run_rows() {
  std::vector<Option> rows;
  for (const Option& row : kRunRows) {
    if (row.flag == "--logit-bias")
      [&rows]<size_t... kAt>(std::index_sequence<kAt...>) {
        (add_sampling_row<kAt>(rows), ...);
      }(std::make_index_sequence<backend::kSamplingFields.size()>());
    rows.push_back(row);
  }
  return rows;
}

}  // namespace nibble::app
