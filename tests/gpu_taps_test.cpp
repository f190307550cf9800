// The residual streams that a card's steps leave for a head, and a head's drafts on a card.

#include "backend/cpu/cpu_backend.h"
#include "engine/draft_model_proposer.h"
#include "engine/engine.h"
#include "gpu_testing.h"
#include "base/mmap_file.h"
#include "model/eagle3/head.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>

namespace nibble {
namespace {

using backend::RunConfig;

struct Rows {
  std::vector<int32_t> lengths;  // of each sequence
  bool guesses = false;          // all tokens but the first of each; else longer ones are prompts
};

// Sequences behind nothing, on pages of their own; each token draws.
struct DrawnStep {
  DrawnStep(const Rows& of, int64_t vocab) {
    int32_t page = 0, most = 0;
    for (const int32_t length : of.lengths)
      most = std::max(most, (length + backend::kPageTokens - 1) / backend::kPageTokens);
    for (const int32_t length : of.lengths) {
      const auto first = static_cast<int32_t>(step.token_ids.size());
      step.rows.push_back(
          {.first_token = first, .tokens = length, .context = length, .drafted = of.guesses ? length - 1 : 0});
      for (int32_t i = 0; i < length; ++i) {
        step.token_ids.push_back(static_cast<int32_t>((first * 31 + i * 7919) % vocab));
        step.positions.push_back(i);
        for (auto& kv : step.kv) kv.slots.push_back(page * backend::kPageTokens + i);
        step.logit_tokens.push_back(first + i);
        step.sample_rows.push_back({.params = &greedy, .position = i + 1});
      }
      for (auto& kv : step.kv) {
        for (int32_t p = 0; p < most; ++p) kv.page_ids.push_back(page + p);
        kv.pages_per_row = most;
      }
      page += most;
    }
  }
  backend::SamplingParams greedy{.temperature = 0};
  model::Step step;
};

constexpr int kMostTokens = 512, kPages = 64;

model::StepLimits limits_with(std::vector<int> taps) {
  return {.max_tokens = kMostTokens, .max_rows = kMostTokens, .kv_pages = {kPages, kPages}, .taps = std::move(taps)};
}

std::vector<float> residuals_of(backend::Backend& be, const model::GptOss& gpt, const model::Step& step,
                                const std::vector<int>& boundaries) {
  model::Taps taps{.boundaries = boundaries};
  const auto ticket = model::forward(be, gpt, step, {}, &taps);
  model::fetch(be, taps);
  const std::span<const float> values = model::residuals(be, taps);
  std::vector<float> all(values.begin(), values.end());
  if (ticket) static_cast<void>(be.wait(*ticket));
  return all;
}

// How far, of each token's row at each boundary, relative to its largest value.
double worst(std::span<const float> got, std::span<const float> want, size_t hidden) {
  double most = 0;
  for (size_t row = 0; row < want.size(); row += hidden) {
    double scale = 0, far = 0;
    for (size_t d = row; d < row + hidden; ++d) {
      scale = std::max(scale, std::abs(double{want[d]}));
      far = std::max(far, std::abs(double{want[d]} - double{got[d]}));
      if (!std::isfinite(got[d])) far = INFINITY;
    }
    most = std::max(most, far / scale);
  }
  return most;
}

// Fused decode kernels, GEMMs of decode steps, guesses, prompts.
const std::vector<Rows> kSteps = {
    {{1}}, {{1, 1, 1}}, {std::vector<int32_t>(12, 1)}, {{5}, true}, {{8}, true}, {{8, 3, 1}, true}, {{70, 1, 1}}};
// The reference takes a second for some tokens of a wide model.
const std::vector<Rows> kFewSteps = {{{1}}, {{3}, true}, {std::vector<int32_t>(9, 1)}};

struct StepRun {
  RunConfig run;
  double tolerance;  // of a row's largest value
  std::string what;
  std::vector<int> cards{};
};

class GpuTaps : public Gpu {
 protected:
  // The reference's of every step, and what each run of cards leaves beside them.
  static void compare(const Source& source, const std::vector<Rows>& steps, const std::vector<StepRun>& all) {
    const auto layers = static_cast<int>(source.config.dims.layers);
    std::vector<int> boundaries = {0, 1, layers / 2, layers};
    boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
    const auto config = model::backend_config(source.config, limits_with(boundaries));
    const auto reference = backend::make_reference_backend(config, {.backend = backend::BackendKind::kCuda});
    const auto gpt = model::load(*reference, source.config, source.weights);
    std::vector<std::vector<float>> want;
    for (const Rows& rows : steps)
      want.push_back(residuals_of(*reference, gpt, DrawnStep(rows, source.config.dims.vocab).step, boundaries));
    for (const StepRun& one : all) {
      const auto cuda = backend::make_cuda_backend(config, one.run, {.devices = one.cards});
      const auto on_cuda = model::load(*cuda, source.config, source.weights);
      double most = 0;
      for (size_t i = 0; i < steps.size(); ++i) {
        SCOPED_TRACE(testing::Message() << one.what << ", step " << i);
        most = std::max(most, compare(*cuda, on_cuda, DrawnStep(steps[i], source.config.dims.vocab).step, boundaries,
                                      want[i], one.tolerance));
      }
      std::printf("taps of %s: worst %.2e of a row's largest value\n", one.what.c_str(), most);
      std::fflush(stdout);
      EXPECT_LT(most, one.tolerance) << one.what;
      EXPECT_EQ(cuda->graph_replays() > 0, one.run.family != KernelFamily::kReference && !one.run.eager) << one.what;
    }
  }

 private:
  // Of one step, three times (run, captured, replayed), quietly and walked; how far from what is wanted.
  static double compare(backend::Backend& be, const model::GptOss& gpt, const model::Step& step,
                        const std::vector<int>& boundaries, std::span<const float> want, double tolerance) {
    const auto hidden = static_cast<size_t>(gpt.config.dims.hidden);
    const std::vector<float> got = residuals_of(be, gpt, step, boundaries);
    EXPECT_EQ(got.size(), step.token_ids.size() * boundaries.size() * hidden);
    EXPECT_EQ(got.size(), want.size());
    if (got.size() != want.size()) return INFINITY;
    for (size_t at = 0; at < want.size(); at += boundaries.size() * hidden)
      EXPECT_TRUE(std::equal(&got[at], &got[at] + hidden, &want[at])) << "the embedding, bit for bit";
    for (int again = 0; again < 2; ++again) EXPECT_EQ(residuals_of(be, gpt, step, boundaries), got) << again;
    // Of a part of a prompt nobody asks for logits.
    model::Step quiet = step;
    quiet.logit_tokens.clear();
    quiet.sample_rows.clear();
    EXPECT_LT(worst(residuals_of(be, gpt, quiet, boundaries), want, hidden), tolerance) << "quiet";
    // As who watches the stages has it.
    model::Taps taps{.boundaries = boundaries};
    const auto ticket = model::forward(be, gpt, step, [](model::Stage, int) {}, &taps);
    model::fetch(be, taps);
    EXPECT_TRUE(std::ranges::equal(model::residuals(be, taps), got)) << "walked";
    static_cast<void>(be.wait(*ticket));
    return worst(got, want, hidden);
  }
};

TEST_F(GpuTaps, are_the_residuals_of_the_reference) {
  compare(Source(kTiny), kSteps,
          {{{.kv = Kv::kF32, .family = KernelFamily::kReference}, 1e-4, "nibble-tiny, plain kernels"},
           {{.kv = Kv::kF32, .family = KernelFamily::kStreaming}, 5e-3, "nibble-tiny, decode kernels"},
           {{}, 5e-2, "nibble-tiny as served"},
           {{.eager = true}, 5e-2, "nibble-tiny without graphs"},
           {{.ranks = {.count = 2}}, 1e-1, "nibble-tiny, two ranks", {0, 0}}});
}

TEST_F(GpuTaps, are_those_of_the_reference_at_real_widths) {
  model::ModelConfig config = model::truncated(model::gpt_oss_20b(), 2);
  config.dims.vocab = 4096;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  compare(Source(config, 7), kFewSteps, {{{}, 5e-2, "gpt-oss-20b, 2 layers"}});
}

// Every draft is verified whole, and some are right, whoever runs the head. Kernels whose sums do not depend on how
// many tokens a step has change no token; others are held to drafting as well.
TEST_F(GpuTaps, a_head_changes_no_greedy_text_and_drafts_for_it) {
  const Source source(kTiny);
  const model::eagle3::Head head(
      model::eagle3::load(kTiny / "eagle3", {source.config, source.weights}, model::eagle3::TapReading::kAuto));
  const auto tokenizer = text::Tokenizer::from_file(kTiny / "tokenizer.json");
  const std::string text = read_text_file(kTiny / "heldout.txt", 1 << 20);
  struct Case {
    bool plain, async, on_host;
  };
  for (const auto& [plain, async, on_host] : {Case{true, false, true}, Case{true, true, true}, Case{true, false, false},
                                              Case{true, true, false}, Case{false, true, false}}) {
    const RunConfig run =
        plain ? RunConfig{.kv = Kv::kBf16, .attention = Attention::kReference, .family = KernelFamily::kReference}
              : RunConfig{};
    engine::DraftStats stats;
    int64_t replays = 0;
    const auto texts = [&](engine::DraftMethod method) {
      engine::EngineLimits limits{.max_context = 512,
                                  .max_sequences = 4,
                                  .max_batched_tokens = 64,
                                  .kv_tokens = 2048,
                                  .target_itl_seconds = std::numeric_limits<double>::infinity(),
                                  .speculation = {.method = method, .most_tokens = 4, .adaptive = false},
                                  .async_scheduling = async};
      if (method == engine::DraftMethod::kEagle3) limits.speculation.head = &head;
      const model::StepLimits steps = engine::step_limits(limits, source.config.dims);
      const auto be = backend::make_cuda_backend(model::backend_config(source.config, steps), run);
      const model::GptOss gpt = model::load(*be, source.config, source.weights);
      const model::StepLimits room = engine::head_step_limits(steps);
      const backend::BackendConfig config = model::eagle3::backend_config(head, room);
      const auto head_be = on_host ? backend::make_cpu_backend(config, {.threads = 4})
                                   : backend::make_cuda_backend(config, {.backend = backend::BackendKind::kCuda});
      const model::GptOss head_gpt = model::load(*head_be, head.config, head.weights);
      const engine::DraftModel drafts{.be = *head_be, .model = head_gpt, .limits = room, .head = &head};
      if (method == engine::DraftMethod::kEagle3) limits.speculation.draft_model = &drafts;
      engine::Loop loop(*be, gpt, limits);
      std::vector<std::vector<int32_t>> tokens(6);
      for (size_t i = 0; i < tokens.size(); ++i)
        loop.add(i + 1,
                 {.prompt = tokenizer.encode(text.substr(900 * i, 60 + 100 * i)),
                  .max_tokens = 100,
                  .sampling = {.temperature = 0}},
                 [&, i](const engine::Event& event) {
                   if (const auto* token = std::get_if<engine::TokenEvent>(&event)) tokens[i].push_back(token->token);
                 });
      while (!loop.idle()) loop.step();
      stats = loop.stats().drafts;
      replays = be->graph_replays();
      return tokens;
    };
    const auto want = texts(engine::DraftMethod::kOff), got = texts(engine::DraftMethod::kEagle3);
    const std::string what = std::string(plain ? "plain kernels" : "as served") + (async ? ", async" : ", in turn") +
                             (on_host ? ", head on the host" : ", head on the card");
    if (plain) EXPECT_EQ(got, want) << what;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].size(), want[i].size()) << what;
    std::printf("a head's guesses, %s: %lld of %lld right\n", what.c_str(), static_cast<long long>(stats.accepted),
                static_cast<long long>(stats.tokens));
    EXPECT_GT(stats.accepted, stats.drafts / 4) << what;
    EXPECT_EQ(replays > 0, !plain) << what;
  }
}

}  // namespace
}  // namespace nibble
