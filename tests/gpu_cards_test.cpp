// The backend of several cards: steps that ranks share on the cards themselves, in graphs. Two ranks on one card, and
// on two where there are two; held against one backend that has it all.

#include "base/error.h"
#include "engine/engine.h"
#include "gpu_testing.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>

namespace nibble {
namespace {

using backend::Ranks;
using backend::RunConfig;

struct Place {
  std::string name;
  std::vector<int> cards;  // by rank
};

class GpuCards : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    const backend::CudaAvailable available = backend::cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
    const int wanted = std::ranges::max(GetParam().cards) + 1;
    if (backend::cuda_cards() < wanted) GTEST_SKIP() << "want " << wanted << " cards";
  }

  // As many ranks as the place has.
  static std::unique_ptr<backend::Backend> on_ranks(const backend::BackendConfig& config, RunConfig run,
                                                    bool whole_experts = false) {
    run.ranks = {static_cast<int>(GetParam().cards.size()), whole_experts};
    return backend::make_cuda_backend(config, run, {.devices = GetParam().cards});
  }
};

// Of every position, read in steps of so many tokens.
void compare_logits(const Source& source, backend::Backend& alone, backend::Backend& ranks, int64_t count, int chunk) {
  const model::GptOss on_one = model::load(alone, source.config, source.weights);
  const model::GptOss on_ranks = model::load(ranks, source.config, source.weights);
  const std::vector<int32_t> tokens = some_tokens(static_cast<size_t>(count), source.config.dims.vocab);
  const std::vector<float> want = test::all_logits(alone, on_one, tokens, chunk);
  const std::vector<float> got = test::all_logits(ranks, on_ranks, tokens, chunk);
  ASSERT_EQ(got.size(), want.size());
  const double median = median_distance(got, want, static_cast<size_t>(source.config.dims.vocab));
  std::printf("%lld tokens in steps of %d: median %.2e from one card's\n", static_cast<long long>(count), chunk,
              median);
  EXPECT_LT(median, chunk <= 8 ? 5e-3 : 2e-2);
}

const std::vector<std::pair<int64_t, int>> kReadings = {{10, 1},    {16, 8},    {60, 20},
                                                        {300, 100}, {600, 200}, {1200, 600}};

TEST_P(GpuCards, have_the_logits_of_one) {
  model::ModelConfig wide = model::truncated(model::preset("gpt-oss-120b"), 2);
  wide.dims.vocab = 4096;
  wide.bos_id = wide.pad_id = 0;
  wide.eos_ids = {1};
  wide.dims.experts = 32;
  const Source tiny(kTiny), of_120b(wide, 11);
  for (const Source* source : {&tiny, &of_120b}) {
    for (const bool whole_experts : {false, true}) {
      for (const auto& [count, chunk] : kReadings) {
        const test::OneSequence limits{.max_context = count, .chunk_tokens = chunk, .max_logit_rows = chunk};
        const backend::BackendConfig config = model::backend_config(source->config, test::step_limits(limits));
        compare_logits(*source, *backend::make_cuda_backend(config, {}), *on_ranks(config, {}, whole_experts), count,
                       chunk);
      }
    }
  }
}

struct Generated {
  std::vector<std::vector<int32_t>> tokens;  // by request
  int64_t replays = 0;
};

// All prompts in one step, whatever steps take: what of a prompt goes beside decoding would depend on that
// (engine/pace.h), and on what shares a step with it depend its roundings.
constexpr int kStepTokens = 4096;
constexpr double kNoPace = std::numeric_limits<double>::infinity();

// All requests at once, through the engine.
Generated generate(backend::Backend& be, const Source& source, int requests, float temperature, int top_k = 0) {
  const model::GptOss gpt = model::load(be, source.config, source.weights);
  const engine::EngineLimits limits{.max_context = 512,
                                    .max_sequences = requests,
                                    .max_batched_tokens = kStepTokens,
                                    .kv_tokens = 512 * int64_t{requests},
                                    .target_itl_seconds = kNoPace,
                                    .async_scheduling = true};
  engine::Loop loop(be, gpt, limits);
  Generated all;
  all.tokens.resize(static_cast<size_t>(requests));
  for (int r = 0; r < requests; ++r) {
    const auto id = static_cast<size_t>(r);
    engine::Request request{.prompt = some_tokens(3 + id % 40, source.config.dims.vocab),
                            .max_tokens = 40,
                            .sampling = {.temperature = temperature, .top_k = top_k, .seed = 7 + id}};
    request.prompt.front() = static_cast<int32_t>(id + 2);  // no two alike
    loop.add(static_cast<engine::RequestId>(r + 1), std::move(request), [&all, id](const engine::Event& event) {
      if (const auto* token = std::get_if<engine::TokenEvent>(&event); token != nullptr && !token->of_prompt)
        all.tokens[id].push_back(token->token);
    });
  }
  while (!loop.idle()) loop.step();
  all.replays = be.graph_replays();
  return all;
}

backend::BackendConfig config_for(const Source& source, int requests) {
  const engine::EngineLimits limits{.max_context = 512,
                                    .max_sequences = requests,
                                    .max_batched_tokens = kStepTokens,
                                    .kv_tokens = 512 * int64_t{requests},
                                    .async_scheduling = true};
  return model::backend_config(source.config, engine::step_limits(limits, source.config.dims));
}

TEST_P(GpuCards, write_the_greedy_text_of_one) {
  const Source source(kTiny);
  const RunConfig plain{.kv = Kv::kF32, .family = KernelFamily::kReference};
  const backend::BackendConfig config = config_for(source, 1);
  const Generated want = generate(*backend::make_cuda_backend(config, plain), source, 1, 0);
  EXPECT_EQ(generate(*on_ranks(config, plain), source, 1, 0).tokens, want.tokens);
}

// Each rank draws all tokens itself; the backend throws where they differ.
TEST_P(GpuCards, draw_alike_in_graphs_and_without_of_128_requests) {
  const Source source(kTiny);
  const backend::BackendConfig config = config_for(source, 128);
  for (const float temperature : {0.0f, 1.0f}) {
    const Generated graphs = generate(*on_ranks(config, {}), source, 128, temperature);
    const Generated eager = generate(*on_ranks(config, {.eager = true}), source, 128, temperature);
    EXPECT_EQ(graphs.tokens, eager.tokens) << "temperature " << temperature;
    EXPECT_GT(graphs.replays, 10);
    EXPECT_EQ(eager.replays, 0);
    for (const std::vector<int32_t>& tokens : graphs.tokens) EXPECT_FALSE(tokens.empty());
    if (temperature > 0) continue;
    const Generated one = generate(*backend::make_cuda_backend(config, {}), source, 128, temperature);
    int alike = 0;
    for (size_t r = 0; r < one.tokens.size(); ++r)
      alike += !one.tokens[r].empty() && one.tokens[r].front() == graphs.tokens[r].front() ? 1 : 0;
    std::printf("of 128 first tokens %d are one card's\n", alike);
    EXPECT_GT(alike, 120);
  }
}

// top_k of all tokens but one keeps what is ever drawn, and wants the logits of all ranks.
TEST_P(GpuCards, draw_from_their_columns_what_they_draw_from_all_logits) {
  const Source source(kTiny);
  const backend::BackendConfig config = config_for(source, 16);
  const auto most = static_cast<int>(source.config.dims.vocab) - 1;
  const auto by_columns = on_ranks(config, {.eager = true}), gathered = on_ranks(config, {.eager = true});
  EXPECT_EQ(generate(*by_columns, source, 16, 0.8f).tokens, generate(*gathered, source, 16, 0.8f, most).tokens);
  for (const auto& [kernel, count] : by_columns->launches()) EXPECT_NE(kernel, "any_push_gather");
  for (const auto& [kernel, count] : gathered->launches()) EXPECT_NE(kernel, "any_push_pick");
}

TEST_P(GpuCards, sum_twice_in_a_layer_of_every_step) {
  const Source source(kTiny);
  const auto be = on_ranks(config_for(source, 1), {});
  const Generated all = generate(*be, source, 1, 0);
  std::map<std::string, int64_t> counts;
  for (const auto& [kernel, count] : be->launches()) counts[std::string(kernel)] = count;
  const int64_t steps = counts["any_push_pick"];
  EXPECT_EQ(counts["any_push_gather"], 0);
  EXPECT_GE(steps, std::ssize(all.tokens[0]));
  int64_t sums = 0;
  for (const auto& [kernel, count] : counts)
    if (kernel.starts_with("any_push_reduce") || kernel.starts_with("any_push_combine")) sums += count;
  EXPECT_EQ(sums, 2 * source.config.dims.layers * steps);
}

INSTANTIATE_TEST_SUITE_P(, GpuCards,
                         testing::Values(Place{"two_ranks_on_one_card", {0, 0}}, Place{"two_cards", {0, 1}},
                                         Place{"four_cards", {0, 1, 2, 3}}),
                         [](const testing::TestParamInfo<Place>& one) { return one.param.name; });

}  // namespace
}  // namespace nibble
