#include "app/options/features.h"

#include <algorithm>

namespace nibble::app {
namespace {

using enum Effect;
using enum Runs;

constexpr Places kEverywhere{};
constexpr Places kOnCpu{kYes, kNo, kNo, kNo};
constexpr Places kOnArm{kNotRun, kNo, kNo, kNo};  // nothing but an emulator has run them
constexpr Places kOnCards{kNo, kYes, kYes, kNotRun};
constexpr Places kOnSm121{kNo, kNo, kNo, kNotRun};
constexpr Places kOfHost{kYes, kNotRun, kNotRun, kNotRun};  // cards would do the same, nobody has tried
constexpr Places kOnHopper{kYes, kNotRun, kYes, kNotRun};   // and would on others, which nobody has tried
constexpr Places kRoundedFirst{kAsValues, kAsValues, kAsValues, kNotRun};
constexpr Places kRoundedToFp8{kAsValues, kAsValues, kYes, kNotRun};

constexpr FeatureValue kBackendWords[] = {
    {"auto", kAsChosen}, {"cpu", kAsChosen, kOnCpu}, {"cuda", kAsChosen, kOnCards}, {"reference", kUnrounded, kOnCpu}};
constexpr FeatureValue kMoeKernels[] = {{"auto", kAsChosen},
                                        {"marlin", kUnrounded, kOnCards},
                                        {"gemm", kUnrounded, kOnCards},
                                        {"gemv", kRounded, kOnCards},
                                        {"reference", kUnrounded, kOnCards}};
constexpr FeatureValue kMoeActivations[] = {{"auto", kAsChosen},
                                            {"f32", kUnrounded, kOnCpu},
                                            {"bf16", kUnrounded},
                                            {"int8", kRounded, kEverywhere, "", "--moe-kernel gemv"},
                                            {"mxfp8", kRounded, kRoundedToFp8},
                                            {"mxfp6", kRounded, kRoundedFirst},
                                            {"mxfp4", kRounded, kRoundedFirst}};
constexpr FeatureValue kMoeTiles[] = {{"auto", kUnrounded},
                                      {"64x128", kAsChosen, kOnSm121, "--moe-activation mxfp8"},
                                      {"128x128", kAsChosen, kOnSm121, "--moe-activation mxfp8"}};
constexpr FeatureValue kDenseActivations[] = {
    {"auto", kAsChosen}, {"bf16", kUnrounded}, {"mxfp8", kRounded, kRoundedFirst, "--mxfp4-layers all"}};
constexpr FeatureValue kMxfp4Layers[] = {{"qkv", kRounded}, {"o", kRounded}, {"lm_head", kRounded}, {"all", kRounded}};
constexpr FeatureValue kMxfp8Layers[] = {{"qkv", kRounded}, {"o", kRounded}, {"lm_head", kRounded}, {"all", kRounded}};
constexpr FeatureValue kFast[] = {{"false", kUnrounded}, {"true", kRounded}};
constexpr FeatureValue kAttention[] = {
    {"auto", kUnrounded}, {"flash", kUnrounded, kOnCards}, {"reference", kUnrounded, kOnCards}};
constexpr FeatureValue kAttentionActivations[] = {
    {"auto", kUnrounded}, {"bf16", kUnrounded}, {"fp8", kRounded, kRoundedFirst, "--kv-cache-dtype fp8"}};
constexpr FeatureValue kSinks[] = {{"on", kUnrounded}, {"off", kRounded}, {"auto", kUnrounded}};
constexpr FeatureValue kEager[] = {{"false", kUnrounded}, {"true", kUnrounded, kOnCards}};
constexpr FeatureValue kKv[] = {
    {"auto", kUnrounded}, {"bf16", kUnrounded}, {"f32", kUnrounded}, {"fp8", kRounded}, {"int8", kRounded, kOnCpu}};
constexpr FeatureValue kSpeculation[] = {
    {"off", kUnrounded},
    {"auto", kUnrounded, kOnHopper},
    {"ngram", kUnrounded, kOfHost},
    {"suffix", kUnrounded, kOnHopper},
    {"eagle3", kUnrounded, kOnHopper, "--speculative-model models/nibble-tiny/eagle3"},
    {"draft", kUnrounded, kOnHopper, "--speculative-model models/nibble-tiny"}};
constexpr FeatureValue kHeads[] = {{"models/nibble-tiny/eagle3", kUnrounded, kOnHopper, "--speculative eagle3"},
                                   {"models/nibble-tiny", kUnrounded, kOnHopper, "--speculative draft"}};
constexpr std::string_view kWithHead = "--speculative eagle3 --speculative-model models/nibble-tiny/eagle3";
constexpr FeatureValue kTapReadings[] = {
    {"auto", kUnrounded}, {"outputs", kUnrounded, kOfHost, kWithHead}, {"boundaries", kUnrounded, kOfHost, kWithHead}};
constexpr FeatureValue kGuesses[] = {
    {"8", kUnrounded, kOfHost}, {"1", kUnrounded, kOfHost}, {"32", kUnrounded, kOfHost}};
constexpr FeatureValue kGuessControl[] = {{"auto", kUnrounded, kOnHopper},
                                          {"off", kUnrounded, kOfHost, "--speculative suffix"}};
constexpr FeatureValue kLookupMax[] = {{"5", kUnrounded, kOfHost}, {"16", kUnrounded, kOfHost}};
constexpr FeatureValue kLookupMin[] = {{"2", kUnrounded, kOfHost}, {"1", kUnrounded, kOfHost}};
constexpr FeatureValue kOnByDefault[] = {{"true", kUnrounded}, {"false", kUnrounded}};
constexpr FeatureValue kAsync[] = {{"true", kUnrounded}, {"false", kUnrounded}};
constexpr FeatureValue kPolicies[] = {{"fcfs", kUnrounded}, {"priority", kUnrounded}};
constexpr FeatureValue kRanks[] = {{"1", kUnrounded}, {"2", kUnrounded, kOnHopper}};
constexpr FeatureValue kWholeExperts[] = {{"false", kUnrounded},
                                          {"true", kUnrounded, kOnHopper, "--tensor-parallel-size 2"}};
constexpr FeatureValue kReplicas[] = {{"1", kUnrounded}, {"2", kUnrounded, kOnHopper}};
constexpr FeatureValue kIsas[] = {{"auto", kUnrounded},
                                  {"baseline", kUnrounded, kOnCpu},
                                  {"avx2", kUnrounded, kOnCpu},
                                  {"avxvnni", kUnrounded, kOnCpu},
                                  {"avx512", kUnrounded, kOnCpu},
                                  {"amx", kUnrounded, kOnCpu},
                                  {"dotprod", kUnrounded, kOnArm},
                                  {"i8mm", kUnrounded, kOnArm}};
constexpr FeatureValue kCopies[] = {{"false", kUnrounded}, {"true", kUnrounded, kOnCpu}};

constexpr Feature kFeatures[] = {
    {"backend", "--backend", "auto", kBackendWords, "cuda wants a build with CUDA and a card from Ampere on",
     "Nothing has run on a GB10"},
    {"kernel", "--moe-kernel", "auto", kMoeKernels, "marlin, gemm and gemv want shapes that can be packed",
     "With a scale above 2^4 in any MXFP4 matrix, all GEMMs of its packing run as any_gemm: slower, exact"},
    {"activation", "--moe-activation", "auto", kMoeActivations, "int8 on a CPU wants AVX2, or SDOT on Arm",
     "auto is int8, so lossy, where a CPU has it. int8: a token's last bits depend on how many share its step. mxfp8 on "
     "SM90: experts whose scales are more than 2^16 apart are multiplied as values"},
    {"tile", "--moe-tile", "auto", kMoeTiles, "a card of compute capability 12, --moe-kernel auto or gemm",
     "Not measured: where 128 tokens are the better tile"},
    {"dense-activation", "--dense-activation", "auto", kDenseActivations,
     "mxfp8: layers of --mxfp4-layers or "
     "--mxfp8-layers",
     "auto follows --moe-activation int8 on a CPU. Its test on a card has not been watched to the end"},
    {"mxfp4-layers", "--mxfp4-layers", "none", kMxfp4Layers,
     "a layer in one of --mxfp4-layers and --mxfp8-layers; a "
     "list with commas",
     "32 sequences of 20b on an H100 are slower with all layers than in bf16"},
    {"mxfp8-layers", "--mxfp8-layers", "none", kMxfp8Layers, "as --mxfp4-layers"},
    {"fast", "--fast", "false", kFast, "alone: it chooses activations, layers and KV type",
     "What it chooses was measured on nibble-tiny"},
    {"attention", "--attention-backend", "auto", kAttention, "flash: head_dim 64, pages of bf16 or fp8",
     "Pages of fp8 are widened, except with --attention-activation fp8"},
    {"attention-activation", "--attention-activation", "auto", kAttentionActivations,
     "fp8 on cards: what --attention-backend flash wants",
     "Cards from 8.9 on, except Hopper, multiply prompts' attention in FP8; none of them has run it"},
    {"sinks", "--attention-sinks", "on", kSinks, "", "off gives another model's text: gpt-oss was trained with sinks"},
    {"eager", "--enforce-eager", "false", kEager, "without a card, serve says that it makes no difference"},
    {"kv", "--kv-cache-dtype", "auto", kKv, "", "fp8 on Hopper: prompts' attention uses the kernels of every card"},
    {"speculation", "--speculative", "off", kSpeculation, "run, chat and serve",
     "On a card, a step with more than 7 guesses of a sequence runs without a CUDA graph"},
    {"guesses", "--speculative-tokens", "7", kGuesses, "--speculative"},
    {"head", "--speculative-model", "none", kHeads,
     "--speculative eagle3: a directory with an EAGLE-3 or P-EAGLE head of the model; draft: a model of the same "
     "vocabulary",
     "No published head of gpt-oss was run"},
    {"guess-control", "--speculative-control", "auto", kGuessControl, "--speculative",
     "off can lose: it is for measurements and for proof that guesses are verified"},
    {"tap-reading", "--speculative-tap-reading", "auto", kTapReadings, "--speculative eagle3"},
    {"lookup-max", "--prompt-lookup-max", "5", kLookupMax, "--speculative ngram"},
    {"lookup-min", "--prompt-lookup-min", "2", kLookupMin, "--speculative ngram"},
    {"prefix-cache", "--enable-prefix-caching", "true", kOnByDefault, "serve"},
    {"async", "--async-scheduling", "on cuda", kAsync, "serve", "On a CPU it only costs"},
    {"policy", "--scheduling-policy", "fcfs", kPolicies, "serve"},
    {"tp", "--tensor-parallel-size", "1", kRanks,
     "a number of ranks that the heads divide into; on cards, one card each",
     "Ranks of a CPU divide its threads: nothing gets faster"},
    {"ep", "--enable-expert-parallel", "false", kWholeExperts},
    {"dp", "--data-parallel-size", "1", kReplicas, "serve; on cards, as many cards each as it has ranks"},
    {"isa", "--cpu-isa", "auto", kIsas, "a CPU that has it"},
    {"no-mmap", "--no-mmap", "false", kCopies, "memory for the weights once more", "Start-up is slower"},
};

constexpr std::string_view kNoFeatures[] = {"--max-waiting",
                                            "--kv-tokens",
                                            "--kv-cache-memory-bytes",
                                            "--max-num-partial-prefills",
                                            "--max-long-partial-prefills",
                                            "--long-prefill-token-threshold",
                                            "--target-itl",
                                            "--max-num-batched-tokens",
                                            "--gpu-memory-utilization",
                                            "--allowed-origin",
                                            "--kv-events",
                                            "--kv-events-endpoint",
                                            "--kv-events-replay-endpoint",
                                            "--kv-events-topic",
                                            "--kv-events-format",
                                            "--kv-events-buffer",
                                            "--kv-events-hwm",
                                            "--nnodes",
                                            "--node-rank",
                                            "--master-addr",
                                            "--master-port",
                                            "--distributed-timeout-seconds",
                                            "--headless",
                                            "--enable-force-include-usage",
                                            "--revision",
                                            "--http-threads",
                                            "--max-connections",
                                            "--max-body-bytes",
                                            "--max-header-bytes",
                                            "--request-timeout",
                                            "--shutdown-timeout",
                                            "--log-requests",
                                            "--log-prompts",
                                            "--log-format",
                                            "--dummy-seed",
                                            "--load-format",
                                            "--date",
                                            "--color",
                                            "--preset"};

constexpr Refusal kRefusals[] = {
    {"cpu", "--moe-kernel marlin"},
    {"cpu", "--attention-backend flash"},
    {"cpu", "--moe-tile 64x128"},
    {"cpu", "--enforce-eager true"},
    {"cpu", "--dense-activation mxfp8"},
    {"cpu", "--attention-activation fp8"},
    {"cpu", "--fast true --kv-cache-dtype fp8"},
    {"cpu", "--mxfp4-layers qkv --mxfp8-layers qkv"},
    {"reference", "--fast true"},
    {"cuda", "--moe-activation f32"},
    {"cuda", "--moe-activation int8"},
    {"cuda", "--moe-kernel gemv --moe-activation mxfp8"},
    {"cuda", "--moe-kernel reference --moe-activation mxfp8"},
    {"cuda", "--moe-kernel reference --mxfp4-layers all"},
    {"cuda", "--attention-backend flash --kv-cache-dtype f32"},
    {"cuda", "--attention-activation fp8 --kv-cache-dtype fp8 --attention-backend reference"},
    {"cuda", "--kv-cache-dtype int8"},
    {"cuda", "--no-mmap true"},
    {"cuda", "--speculative draft"},
    {"cuda", "--speculative draft --speculative-model models/nibble-tiny --tensor-parallel-size 2"},
    {"cuda", "--moe-tile 64x128 --moe-activation mxfp8", "h100"},
    {"cuda", "--moe-tile 64x128", "gb10"},
    {"cuda", "--moe-tile 64x128 --moe-activation mxfp8 --moe-kernel marlin", "gb10"},
};

// Sinks are on in all of them: C4 only says so.
constexpr Preset kPresetRows[] = {
    {"B1", "--moe-kernel marlin --moe-activation bf16", "streaming kernels, 16-bit activations"},
    {"C1", "--moe-kernel gemm --moe-activation bf16", "tensor-core GEMMs beyond eight tokens"},
    {"C2", "--moe-kernel gemm --moe-activation mxfp8", "as C1, with activations rounded to E4M3 in blocks of 32"},
    {"C3", "--moe-kernel gemm --moe-activation mxfp8 --speculative suffix", "as C2, with guesses from past text"},
    {"C4", "--moe-kernel gemm --moe-activation mxfp8 --speculative suffix --attention-sinks on",
     "as C3, with sinks named explicitly"},
};

}  // namespace

std::string_view name_of(Effect effect) {
  switch (effect) {
    case kUnrounded: return "exact";
    case kRounded: return "lossy";
    case kAsChosen: return "as chosen";
  }
  return "?";
}

std::string_view name_of(Runs runs) {
  switch (runs) {
    case kNo: return "–";
    case kYes: return "yes";
    case kAsValues: return "as values";
    case kNotRun: return "not run";
  }
  return "?";
}

const FeatureValue* Feature::value_named(std::string_view word) const {
  const auto it = std::ranges::find(values, word, &FeatureValue::word);
  return it == values.end() ? nullptr : &*it;
}

std::span<const Feature> features() { return kFeatures; }

const Feature* feature_named(std::string_view name) {
  const auto* const it = std::ranges::find(kFeatures, name, &Feature::name);
  return it == std::end(kFeatures) ? nullptr : it;
}

std::span<const std::string_view> flags_of_no_feature() { return kNoFeatures; }
std::span<const Refusal> refusals() { return kRefusals; }
std::span<const Preset> presets() { return kPresetRows; }

const Preset* preset_named(std::string_view name) {
  const auto* const it = std::ranges::find(kPresetRows, name, &Preset::name);
  return it == std::end(kPresetRows) ? nullptr : it;
}

}  // namespace nibble::app
