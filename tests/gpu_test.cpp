// The CUDA backend behind the waist, against itself and the CPU: chunks, generated tokens, graphs, tickets, refusals.

#include "base/error.h"
#include "engine/draft_model_proposer.h"
#include "gpu_testing.h"
#include "one_sequence.h"

#include <cmath>
#include <cstdio>
#include <string>

namespace nibble {
namespace {

TEST_F(Gpu, chunks_do_not_change_a_bit) {
  for (const std::string name : {"window_e8", "experts_e32"}) {
    const Source source(kParity / name);
    const std::vector<int32_t> tokens = some_tokens(200, source.config.dims.vocab);
    Loaded whole(source, tokens.size(), 200, Kv::kBf16, Attention::kReference);
    const std::vector<float> want = all_logits(whole, tokens);
    for (const int chunk : {1, 7, 64}) {
      Loaded loaded(source, tokens.size(), chunk, Kv::kBf16, Attention::kReference);
      EXPECT_EQ(all_logits(loaded, tokens), want) << name << ", chunks of " << chunk;
    }
  }
}

TEST_F(Gpu, chunks_do_not_change_a_bit_at_real_widths) {
  const Source source(model::truncated(model::gpt_oss_20b(), 1), 8);
  const std::vector<int32_t> tokens = some_tokens(65, source.config.dims.vocab);
  Loaded whole(source, tokens.size(), 65, Kv::kBf16, Attention::kReference);
  const std::vector<float> want = all_logits(whole, tokens);
  EXPECT_TRUE(std::none_of(want.begin(), want.end(), [](float v) { return std::isnan(v); }));
  for (const int chunk : {1, 7}) {
    Loaded loaded(source, tokens.size(), chunk, Kv::kBf16, Attention::kReference);
    EXPECT_EQ(all_logits(loaded, tokens), want) << "chunks of " << chunk;
  }
}

// `rows` sequences, each of its own pages: a step of all prompts, then steps of one token each. The logits of all.
std::vector<float> batch_logits(Loaded& loaded, int rows, int decodes) {
  constexpr int32_t kPages = 2;  // of a row
  std::vector<float> all;
  std::vector<int32_t> context(static_cast<size_t>(rows), 0);
  for (int s = 0; s <= decodes; ++s) {
    model::Step step;
    for (int32_t r = 0; r < rows; ++r) {
      int32_t& seen = context[static_cast<size_t>(r)];
      const int32_t tokens = s == 0 ? 1 + r * 7 % 30 : 1;
      step.rows.push_back(
          {.first_token = static_cast<int32_t>(step.token_ids.size()), .tokens = tokens, .context = seen + tokens});
      for (int32_t i = 0; i < tokens; ++i, ++seen) {
        step.token_ids.push_back((r * 131 + seen * 17 + 3) % 1000);
        step.positions.push_back(seen);
        for (auto& kv : step.kv) kv.slots.push_back(r * kPages * backend::kPageTokens + seen);
      }
      for (auto& kv : step.kv) {
        kv.pages_per_row = kPages;
        for (int32_t p = 0; p < kPages; ++p) kv.page_ids.push_back(r * kPages + p);
      }
      step.logit_tokens.push_back(static_cast<int32_t>(step.token_ids.size()) - 1);
    }
    model::forward(*loaded.be, loaded.gpt, step);
    const std::vector<float> logits = loaded.be->peek(backend::Slot::kLogits).values;
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST_F(Gpu, the_same_batch_again_gives_the_same_bits) {
  const Source source(kTiny);
  for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm}) {
    Loaded loaded(source, {.max_context = 128 * 64, .chunk_tokens = 1024, .max_logit_rows = 64}, Which::kCuda,
                  {.family = family});
    for (const int rows : {1, 3, 8, 9, 33, 64}) {
      const std::vector<float> want = batch_logits(loaded, rows, 6);
      for (int again = 0; again < 8; ++again) {
        const std::vector<float> got = batch_logits(loaded, rows, 6);
        ASSERT_EQ(got.size(), want.size());
        size_t differ = 0, first = 0;
        for (size_t i = got.size(); i-- > 0;)
          if (got[i] != want[i]) ++differ, first = i;
        const auto row = first / static_cast<size_t>(source.config.dims.vocab);
        EXPECT_EQ(differ, 0U) << name_of(family) << ", " << rows << " rows, time " << again << ": first in step "
                              << row / static_cast<size_t>(rows) << ", row " << row % static_cast<size_t>(rows);
      }
    }
  }
}

// Each with pages of the same type, so that the kernels differ alone.
TEST_F(Gpu, flash_attention_is_the_plain_one_up_to_rounding) {
  for (const Source& source : {Source(kTiny), Source(kParity / "experts_e32")}) {
    if (source.config.dims.head_dim != 64) continue;
    const std::vector<int32_t> tokens = some_tokens(200, source.config.dims.vocab);
    Loaded plain(source, tokens.size(), 200, Kv::kBf16, Attention::kReference);
    const std::vector<float> want = all_logits(plain, tokens);
    for (const int chunk : {1, 7, 64, 200}) {
      Loaded flash(source, tokens.size(), chunk, Kv::kBf16, Attention::kFlash);
      const double difference = relative(all_logits(flash, tokens), want);
      std::printf("flash attention, chunks of %d: %.2e from the plain one\n", chunk, difference);
      EXPECT_LT(difference, chunk <= 8 ? 1e-3 : 0.02) << "chunks of " << chunk;
      Loaded fp8(source, tokens.size(), chunk, Kv::kE4m3);
      const std::vector<float> of_fp8 = all_logits(fp8, tokens);
      EXPECT_LT(relative(of_fp8, want), 0.25) << "fp8, chunks of " << chunk;
      Loaded plain_fp8(source, tokens.size(), chunk, Kv::kE4m3, Attention::kReference);
      EXPECT_LT(relative(of_fp8, all_logits(plain_fp8, tokens)), 0.1) << "fp8 by the plain kernel, chunks of " << chunk;
    }
  }
}

TEST_F(Gpu, flash_attention_names_its_kernels_and_refuses_f32_pages) {
  const Source source(kTiny);
  Loaded loaded(source, 20, 20, Kv::kBf16, Attention::kFlash);
  all_logits(loaded, some_tokens(20, source.config.dims.vocab));
  bool prefill = false;
  for (const backend::KernelLaunches& launch : loaded.cuda->launches()) {
    prefill |= launch.kernel.find("attend_prefill") != launch.kernel.npos && launch.count == source.config.dims.layers;
    EXPECT_NE(launch.kernel, "any_attend<bf16>");
  }
  EXPECT_TRUE(prefill);
  EXPECT_THROW(Loaded(source, 20, 20, Kv::kF32, Attention::kFlash), Error);
}

std::vector<int32_t> generate(Loaded& loaded, const engine::Request& request) {
  engine::Loop loop(*loaded.be, loaded.gpt, test::engine_limits(loaded.limits));
  return test::generate(loop, request).tokens;
}

// With kernels whose sums do not depend on how many tokens a step has. Every draft is verified whole, and some are
// right.
TEST_F(Gpu, guesses_change_no_token_where_kernels_sum_alike) {
  const Source source(kTiny);
  test::OneSequence limits{.max_context = 512, .chunk_tokens = 64, .max_logit_rows = 16};
  for (const bool async : {false, true}) {
    int64_t drafted = 0, right = 0;
    for (const float temperature : {0.0f, 0.8f}) {
      engine::EngineLimits with = test::engine_limits(limits);
      with.async_scheduling = async;
      const auto tokens = [&](engine::DraftMethod method) {
        const backend::RunConfig numbers{
            .kv = Kv::kBf16, .attention = Attention::kReference, .family = KernelFamily::kReference};
        Loaded loaded(source, limits, Which::kCuda, numbers), draft(source, limits, Which::kCuda, numbers);
        const engine::DraftModel draft_model{
            .be = *draft.be, .model = draft.gpt, .limits = engine::draft_step_limits(test::step_limits(limits))};
        with.speculation = {.method = method, .most_tokens = 7, .draft_model = &draft_model, .adaptive = false};
        engine::Loop loop(*loaded.be, loaded.gpt, with);
        std::vector<int32_t> all;
        for (int i = 0; i < 3; ++i) {
          engine::Request request{.prompt = some_tokens(40 + 30 * static_cast<size_t>(i), source.config.dims.vocab),
                                  .max_tokens = 120,
                                  .sampling = {.temperature = temperature, .seed = static_cast<uint64_t>(i)}};
          if (i == 1) request.sampling.repetition_penalty = 1.1f;
          if (i == 2) request.logprobs = 2;
          const std::vector<int32_t> answer = test::generate(loop, request).tokens;
          all.insert(all.end(), answer.begin(), answer.end());
        }
        drafted += loop.stats().drafts.tokens;
        right += loop.stats().drafts.accepted;
        if (method == engine::DraftMethod::kDraft)
          EXPECT_GT(loop.stats().drafts.accepted, loop.stats().drafts.tokens * 9 / 10) << "its own, drawn or likeliest";
        return all;
      };
      const std::vector<int32_t> want = tokens(engine::DraftMethod::kOff);
      EXPECT_EQ(tokens(engine::DraftMethod::kSuffix), want) << temperature;
      EXPECT_EQ(tokens(engine::DraftMethod::kNgram), want) << temperature;
      EXPECT_EQ(tokens(engine::DraftMethod::kDraft), want) << temperature;
    }
    std::printf("guesses: %lld of %lld right\n", static_cast<long long>(right), static_cast<long long>(drafted));
    EXPECT_GT(drafted, 100);
  }
}

TEST_F(Gpu, generates_the_tokens_of_the_cpu_greedy_and_drawn) {
  const Source source(kTiny);
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded cuda(source, limits, Which::kCuda), cpu(source, limits, Which::kCpu);
  engine::Request request{
      .prompt = some_tokens(37, source.config.dims.vocab), .max_tokens = 60, .sampling = {}, .stop_ids = {}};
  const backend::SamplingParams all[] = {{.temperature = 0},
                                         {.temperature = 1, .seed = 3},
                                         {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 50, .seed = 4},
                                         {.temperature = 0.7f,
                                          .repetition_penalty = 1.2f,
                                          .presence_penalty = 0.3f,
                                          .frequency_penalty = 0.2f,
                                          .logit_bias = {{11, 2.0f}, {12, -5.0f}},
                                          .seed = 5}};
  for (const backend::SamplingParams& params : all) {
    request.sampling = params;
    EXPECT_EQ(generate(cuda, request), generate(cpu, request)) << "temperature " << params.temperature;
  }
}

TEST_F(Gpu, log_probabilities_are_those_of_the_step_that_draws) {
  const Source source(kTiny);
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded cuda(source, limits, Which::kCuda), cpu(source, limits, Which::kCpu);
  const engine::Request request{.prompt = some_tokens(37, source.config.dims.vocab),
                                .max_tokens = 20,
                                .sampling = {.temperature = 0},
                                .stop_ids = {},
                                .logprobs = 2};
  const auto logprobs = [&](Loaded& loaded) {
    engine::Loop loop(*loaded.be, loaded.gpt, test::engine_limits(loaded.limits));
    std::vector<double> values;
    static_cast<void>(loop.serve(request, [&](const engine::TokenEvent& event) {
      values.push_back(event.logprobs ? event.logprobs->value : NAN);
      return true;
    }));
    return values;
  };
  const std::vector<double> got = logprobs(cuda), want = logprobs(cpu);
  ASSERT_EQ(got.size(), 20U);
  ASSERT_EQ(want.size(), 20U);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.1) << "token " << i;
}

TEST_F(Gpu, marlin_generates_the_greedy_tokens_of_the_cpu) {
  const Source source(kTiny);
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded cuda(source, limits, Which::kCuda, {.family = KernelFamily::kStreaming}), cpu(source, limits, Which::kCpu);
  const engine::Request request{.prompt = some_tokens(37, source.config.dims.vocab),
                                .max_tokens = 60,
                                .sampling = {.temperature = 0},
                                .stop_ids = {}};
  EXPECT_EQ(generate(cuda, request), generate(cpu, request));
}

TEST_F(Gpu, generates_the_greedy_tokens_of_the_cpu_from_the_same_gguf_file) {
  const test::ScratchDir dir;
  const Source source(Source(kTiny), dir);
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  const engine::Request request{.prompt = some_tokens(37, source.config.dims.vocab),
                                .max_tokens = 60,
                                .sampling = {.temperature = 0},
                                .stop_ids = {}};
  Loaded cpu(source, limits, Which::kCpu);
  for (const KernelFamily family : {KernelFamily::kReference, KernelFamily::kAuto}) {
    Loaded cuda(source, limits, Which::kCuda, {.family = family});
    EXPECT_EQ(generate(cuda, request), generate(cpu, request)) << name_of(family);
  }
}

TEST_F(Gpu, replayed_graphs_give_the_tokens_and_launches_of_eager_steps) {
  const Source source(kTiny);
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded eager(source, limits, Which::kCuda, {.family = KernelFamily::kStreaming, .eager = true});
  Loaded graphs(source, limits, Which::kCuda, {.family = KernelFamily::kStreaming});
  engine::Request request{
      .prompt = some_tokens(37, source.config.dims.vocab), .max_tokens = 100, .sampling = {}, .stop_ids = {}};
  const backend::SamplingParams all[] = {
      {.temperature = 0}, {.temperature = 1, .seed = 3}, {.temperature = 0.8f, .top_k = 50, .seed = 4}};
  for (const backend::SamplingParams& params : all) {
    request.sampling = params;
    EXPECT_EQ(generate(graphs, request), generate(eager, request)) << "temperature " << params.temperature;
  }
  EXPECT_GE(graphs.cuda->graph_replays(), 190);  // two of three requests, but for the first two steps
  EXPECT_EQ(eager.cuda->graph_replays(), 0);
  const auto counts = [](const Loaded& loaded) {
    std::vector<std::pair<std::string, int64_t>> result;
    for (const backend::KernelLaunches& l : loaded.cuda->launches()) result.emplace_back(l.kernel, l.count);
    return result;
  };
  EXPECT_EQ(counts(graphs), counts(eager));
}

// Rows of different lengths that pass page boundaries, as many as a graph takes.
TEST_F(Gpu, replayed_batches_draw_what_eager_batches_draw) {
  const Source source(kTiny);
  const auto run = [&](int most_rows, KernelFamily family, bool eager) {
    constexpr int kPages = 4, kSteps = 150;
    const model::StepLimits limits{
        .max_tokens = 64, .max_rows = 40, .kv_pages = {most_rows * kPages, most_rows * kPages}};
    const auto cuda =
        backend::make_cuda_backend(model::backend_config(source.config, limits), {.family = family, .eager = eager});
    const model::GptOss gpt = model::load(*cuda, source.config, source.weights);
    const backend::SamplingParams greedy{.temperature = 0};
    std::vector<std::vector<int32_t>> drawn;
    std::vector<int32_t> last(static_cast<size_t>(most_rows), 17);
    for (int s = 0; s < kSteps; ++s) {
      const int rows = s < 60 ? most_rows : most_rows - 2;
      model::Step step;
      for (int r = 0; r < rows; ++r) {
        const int position = s;
        step.token_ids.push_back(s == 0 ? 17 + r : last[static_cast<size_t>(r)]);
        step.positions.push_back(position);
        step.rows.push_back({.first_token = r, .tokens = 1, .context = position + 1});
        step.logit_tokens.push_back(r);
        step.sample_rows.push_back({.params = &greedy, .position = position});
        for (auto& kv : step.kv) {
          kv.pages_per_row = position / backend::kPageTokens + 1;
          kv.slots.push_back((r * kPages + position / backend::kPageTokens) * backend::kPageTokens +
                             position % backend::kPageTokens);
          for (int p = 0; p < kv.pages_per_row; ++p) kv.page_ids.push_back(r * kPages + p);
        }
      }
      last.clear();
      for (const backend::DrawnToken& row : cuda->wait(*model::forward(*cuda, gpt, step))) last.push_back(row.token);
      drawn.push_back(last);
    }
    EXPECT_EQ(cuda->graph_replays() > 100, !eager);
    return drawn;
  };
  for (const int rows : {5, 10, 37})
    for (const KernelFamily family : {KernelFamily::kStreaming, KernelFamily::kAuto})
      EXPECT_EQ(run(rows, family, false), run(rows, family, true)) << rows << " rows, " << name_of(family);
}

// Steps of sequences with guesses between steps without, which share their graphs: every draw is that of eager steps.
TEST_F(Gpu, replayed_steps_with_guesses_draw_what_eager_ones_draw) {
  const Source source(kTiny);
  const auto run = [&](KernelFamily family, bool eager) {
    constexpr int kPages = 8, kSequences = 3, kSteps = 60;
    const model::StepLimits limits{
        .max_tokens = 64, .max_rows = 40, .kv_pages = {kSequences * kPages, kSequences * kPages}};
    const auto cuda =
        backend::make_cuda_backend(model::backend_config(source.config, limits), {.family = family, .eager = eager});
    const model::GptOss gpt = model::load(*cuda, source.config, source.weights);
    const backend::SamplingParams greedy{.temperature = 0};
    std::vector<std::vector<int32_t>> drawn;
    std::vector<int32_t> length(kSequences, 0), last = {17, 18, 19};
    for (int s = 0; s < kSteps; ++s) {
      model::Step step;
      std::vector<int32_t> ends;
      for (int r = 0; r < kSequences; ++r) {
        const auto of = static_cast<size_t>(r);
        const int32_t tokens = s % 4 == 0 ? 1 : s % 4 == 1 ? 8 : s % 4 == 2 ? 1 + 2 * r : 5 - 2 * r;
        step.rows.push_back({.first_token = static_cast<int32_t>(step.token_ids.size()),
                             .tokens = tokens,
                             .context = length[of] + tokens,
                             .drafted = tokens - 1});
        for (int32_t t = 0; t < tokens; ++t) {
          const int32_t position = length[of] + t;
          step.logit_tokens.push_back(static_cast<int32_t>(step.token_ids.size()));
          step.token_ids.push_back((last[of] + 3 * t) % static_cast<int32_t>(source.config.dims.vocab));
          step.positions.push_back(position);
          step.sample_rows.push_back({.params = &greedy, .position = position + 1});
          for (auto& kv : step.kv)
            kv.slots.push_back((r * kPages + position / backend::kPageTokens) * backend::kPageTokens +
                               position % backend::kPageTokens);
        }
        ends.push_back(static_cast<int32_t>(step.token_ids.size()) - 1);
        length[of] += tokens;
      }
      for (auto& kv : step.kv) {
        kv.pages_per_row = kPages;
        for (int p = 0; p < kSequences * kPages; ++p) kv.page_ids.push_back(p);
      }
      drawn.emplace_back();
      for (const backend::DrawnToken& row : cuda->wait(*model::forward(*cuda, gpt, step)))
        drawn.back().push_back(row.token);
      for (size_t r = 0; r < ends.size(); ++r) last[r] = drawn.back()[static_cast<size_t>(ends[r])];
    }
    EXPECT_EQ(cuda->graph_replays() > 40, !eager);
    return drawn;
  };
  for (const KernelFamily family : {KernelFamily::kStreaming, KernelFamily::kAuto})
    EXPECT_EQ(run(family, false), run(family, true)) << name_of(family);
}

// As many layers as the largest model; a graph's size does not depend on their widths. Others on the card would be
// measured with it.
TEST_F(Gpu, graphs_take_no_more_memory_than_the_budget_says) {
  model::ModelConfig config = model::gpt_oss_120b();
  config.dims.hidden = config.dims.inter = 192;
  config.dims.vocab = 512;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {0};
  const Source source(config, 7);
  constexpr int kSizes = 128;
  const auto be =
      model::backend_config(config, {.max_tokens = kSizes, .max_rows = kSizes, .kv_pages = {kSizes, kSizes}});
  const auto cuda = backend::make_cuda_backend(be, {});
  const model::GptOss gpt = model::load(*cuda, config, source.weights);
  const backend::SamplingParams greedy{.temperature = 0};
  const auto run = [&](int rows) { cuda->wait(*model::forward(*cuda, gpt, test::first_tokens(rows, greedy))); };
  for (int rows = 1; rows <= kSizes; ++rows) run(rows);
  const int64_t before = backend::cuda_memory().free_bytes;
  for (int rows = 1; rows <= kSizes; ++rows) run(rows), run(rows);
  const int64_t taken = before - backend::cuda_memory().free_bytes;
  std::printf("%d graphs of %d layers took %.1f MB\n", kSizes, 36, static_cast<double>(taken) / 1e6);
  EXPECT_GE(cuda->graph_replays(), kSizes);
  EXPECT_LE(taken, backend::cuda_memory_needs(be, {}).graphs);
}

TEST_F(Gpu, a_copied_page_is_as_good_as_the_first) {
  const Source source(kTiny);
  const model::StepLimits limits{.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}};
  for (const auto& [kv, family] :
       {std::pair{Kv::kF32, KernelFamily::kReference}, {Kv::kBf16, KernelFamily::kStreaming}}) {
    const auto cuda =
        backend::make_cuda_backend(model::backend_config(source.config, limits), {.kv = kv, .family = family});
    test::expect_page_copies(*cuda, model::load(*cuda, source.config, source.weights));
  }
}

TEST_F(Gpu, tickets_may_wait_while_the_next_step_runs) {
  const Source source(kTiny);
  const test::OneSequence limits{.max_context = 64, .chunk_tokens = 8, .max_logit_rows = 2};
  Loaded loaded(source, limits, Which::kCuda);
  const backend::SamplingParams greedy{.temperature = 0}, drawn{.seed = 9};
  const auto run = [&](bool at_once) {
    std::vector<backend::Ticket> tickets;
    std::vector<std::vector<int32_t>> tokens;
    const auto wait = [&](backend::Ticket ticket) {
      tokens.emplace_back();
      for (const backend::DrawnToken& one : loaded.be->wait(ticket)) tokens.back().push_back(one.token);
    };
    for (int i = 0; i < 3; ++i) {
      model::Step step = engine::step_alone(some_tokens(static_cast<size_t>(5 + i), source.config.dims.vocab));
      step.logit_tokens = {1, 4};
      step.sample_rows = {{.params = &greedy, .position = 2}, {.params = &drawn, .position = 5}};
      tickets.push_back(*model::forward(*loaded.be, loaded.gpt, step));
      if (at_once) wait(tickets.back());
    }
    for (size_t i = 0; !at_once && i < tickets.size(); ++i) wait(tickets[i]);
    return tokens;
  };
  const auto want = run(true);
  EXPECT_EQ(run(false), want);
  EXPECT_EQ(want[0].size(), 2u);
}

TEST_F(Gpu, launches_name_the_kernels_that_ran) {
  const Source source(kTiny);
  Loaded loaded(source, 20, 20);
  all_logits(loaded, some_tokens(20, source.config.dims.vocab));
  const std::vector<backend::KernelLaunches> launches = loaded.cuda->launches();
  const auto count = [&](std::string_view kernel) {
    const auto at = std::find_if(launches.begin(), launches.end(), [&](const auto& l) { return l.kernel == kernel; });
    return at == launches.end() ? 0 : at->count;
  };
  const int64_t layers = source.config.dims.layers;
  EXPECT_EQ(count("any_embed_f32_bf16"), 1);
  EXPECT_EQ(count("any_attend<f32>"), layers);
  EXPECT_EQ(count("any_attend<bf16>"), 0);
  EXPECT_EQ(count("any_moe_gate_up_f32_mxfp4"), layers);
  EXPECT_EQ(count("any_linear_f32_bf16"), 5 * layers + 1);
  EXPECT_EQ(count("any_sample_draw_f32"), 0);
}

TEST_F(Gpu, too_large_a_cache_is_refused_with_the_bytes_wanted) {
  const Source source(kParity / "window_e8");
  const model::StepLimits limits{.max_tokens = 1, .max_rows = 1, .kv_pages = {1 << 26, 1 << 26}};
  try {
    static_cast<void>(backend::make_cuda_backend(model::backend_config(source.config, limits), {}));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.what();
    EXPECT_NE(std::string_view(error.what()).find("GiB free"), std::string_view::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble
