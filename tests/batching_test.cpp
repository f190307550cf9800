// The small model of the repository behind the engine: many requests at once get bit for bit what each gets alone, and
// a conversation computes only what is new.

#include "backend/cpu/cpu_backend.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "model/hf_config.h"
#include "engine/engine.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "one_sequence.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using engine::EngineLimits;
using engine::Finished;
using engine::FinishReason;
using engine::Request;

const fs::path kTiny = fs::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

struct Files {
  model::ModelConfig config = model::read_hf_config(kTiny).config;
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(kTiny);
  std::vector<backend::HostWeight> weights = model::bind_weights(checkpoint.entries(), config);
  text::Tokenizer tokenizer = text::Tokenizer::from_file(kTiny / "tokenizer.json");
};

struct Loaded {
  Loaded(const Files& files, const model::StepLimits& limits)
      : be(backend::make_cpu_backend(model::backend_config(files.config, limits),
                                     {.threads = 2, .activations = backend::Activations::kF32})),
        gpt(model::load(*be, files.config, files.weights)) {}
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<engine::TokenLogprobs> logprobs, prompt_logprobs;
  Finished finished;
};

// Submits all at once; the answers in the same order.
std::vector<Answer> ask(engine::Engine& engine, const std::vector<Request>& requests) {
  std::mutex mutex;  // guards answers and finished
  std::condition_variable done;
  std::vector<Answer> answers(requests.size());
  size_t finished = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(requests[i], [&, i](const engine::Event& event) {
      const std::lock_guard lock(mutex);
      if (const auto* end = std::get_if<Finished>(&event)) {
        answers[i].finished = *end;
        ++finished;
        done.notify_one();
        return;
      }
      const auto& token = std::get<engine::TokenEvent>(event);
      if (!token.of_prompt) answers[i].tokens.push_back(token.token);
      if (token.logprobs)
        (token.of_prompt ? answers[i].prompt_logprobs : answers[i].logprobs).push_back(*token.logprobs);
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return finished == requests.size(); });
  return answers;
}

class Batching : public testing::Test {
 protected:
  static void SetUpTestSuite() { files = std::make_unique<Files>(); }
  static void TearDownTestSuite() { files.reset(); }

  static Answer alone(const Request& request) {
    const test::OneSequence limits{.max_context = 1024, .chunk_tokens = 256};
    Loaded loaded(*files, test::step_limits(limits));
    engine::Loop loop(*loaded.be, loaded.gpt, test::engine_limits(limits));
    auto [tokens, finished] = test::generate(loop, request);
    return {.tokens = std::move(tokens), .logprobs = {}, .prompt_logprobs = {}, .finished = std::move(finished)};
  }

  // Greedy, drawn, with penalties; short and longer than two windows; many begin alike.
  static std::vector<Request> mixed(size_t count) {
    const std::string text = read_text_file(kTiny / "heldout.txt", 1 << 20);
    std::vector<Request> requests;
    for (size_t i = 0; i < count; ++i) {
      Request request{.max_tokens = static_cast<int64_t>(12 + i * 7 % 25)};
      const size_t start = i % 3 == 0 ? 0 : i * 211 % 4000;
      request.prompt = files->tokenizer.encode(text.substr(start, 15 + i * 97 % 500));
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.9f, .top_p = i % 4 == 1 ? 0.9f : 1.0f, .seed = i};
      if (i % 5 == 4) request.sampling.repetition_penalty = 1.2f;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  static engine::EngineStats expect_each_alone(const EngineLimits& limits, const std::vector<Request>& requests) {
    Loaded loaded(*files, engine::step_limits(limits, files->config.dims));
    engine::Engine engine(*loaded.be, loaded.gpt, limits);
    const std::vector<Answer> got = ask(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer want = alone(requests[i]);
      EXPECT_EQ(got[i].tokens, want.tokens) << i;
      EXPECT_EQ(got[i].finished.reason, want.finished.reason) << got[i].finished.message;
    }
    return engine.stats();
  }

  static std::unique_ptr<Files> files;
};
std::unique_ptr<Files> Batching::files;

TEST_F(Batching, many_at_once_get_bit_for_bit_what_each_gets_alone) {
  const std::vector<Request> requests = mixed(16);
  const EngineLimits limits{.max_context = 512, .max_sequences = 10, .max_batched_tokens = 100, .kv_tokens = 4096};
  expect_each_alone(limits, requests);
}

TEST_F(Batching, those_that_give_way_for_want_of_pages_get_the_same) {
  std::vector<Request> requests = mixed(4);
  for (Request& request : requests) {
    request.prompt.resize(std::min<size_t>(request.prompt.size(), 20));
    request.max_tokens = 130;
  }
  const EngineLimits limits{.max_context = 256, .max_sequences = 4, .max_batched_tokens = 64};
  EXPECT_GT(expect_each_alone(limits, requests).preemptions, 0);
}

TEST_F(Batching, twenty_turns_compute_their_new_tokens_only) {
  const EngineLimits limits{.max_context = 1024, .max_sequences = 4, .max_batched_tokens = 128, .kv_tokens = 4096};
  Loaded loaded(*files, engine::step_limits(limits, files->config.dims));
  engine::Engine engine(*loaded.be, loaded.gpt, limits);
  std::vector<int32_t> history;
  int64_t prompts = 0, known = 0;
  for (int turn = 0; turn < 20; ++turn) {
    known = static_cast<int64_t>(history.size());
    const std::vector<int32_t> said =
        files->tokenizer.encode(" Then Lily said: " + std::to_string(turn) + " birds and a cat.");
    history.insert(history.end(), said.begin(), said.end());
    prompts += static_cast<int64_t>(said.size());
    Request request{.prompt = history, .max_tokens = 15, .sampling = {.temperature = 0.7f, .seed = 9}};
    const Answer got = ask(engine, {request}).at(0);
    EXPECT_GE(got.finished.cached_tokens, known - 1) << "turn " << turn;
    if (turn % 6 == 1) EXPECT_EQ(got.tokens, alone(request).tokens) << "turn " << turn;
    history.insert(history.end(), got.tokens.begin(), got.tokens.end());
  }
  EXPECT_GT(history.size(), 400u);
  const engine::EngineStats stats = engine.stats();
  EXPECT_LE(stats.prompt_tokens, static_cast<int64_t>(history.size()));
  EXPECT_EQ(stats.prefix_queries - stats.prefix_hits - prompts, 19);  // each turn's last token, drawn and never fed
}

// As in Harmony, which drops the analysis before the answer: the next prompt leaves the last in the middle of a page.
TEST_F(Batching, a_turn_whose_answer_comes_back_otherwise_goes_on_from_its_prompt) {
  const EngineLimits limits{.max_context = 1024, .max_sequences = 4, .max_batched_tokens = 128, .kv_tokens = 4096};
  Loaded loaded(*files, engine::step_limits(limits, files->config.dims));
  engine::Engine engine(*loaded.be, loaded.gpt, limits);
  std::vector<int32_t> prompt = files->tokenizer.encode("Lily had a red ball and a small dog.");
  for (int turn = 0; turn < 8; ++turn) {
    const auto known = turn == 0 ? 0 : std::ssize(prompt);
    const std::vector<int32_t> said =
        files->tokenizer.encode(" She saw " + std::to_string(turn) + " birds. Then it rained, and she ran home.");
    prompt.insert(prompt.end(), said.begin(), said.end());
    const Request request{.prompt = prompt, .max_tokens = 40, .sampling = {.temperature = 0.8f, .seed = 4}};
    const Answer got = ask(engine, {request}).at(0);
    EXPECT_GE(got.finished.cached_tokens, known) << turn;
    EXPECT_EQ(got.tokens, alone(request).tokens) << turn;
  }
}

TEST_F(Batching, logprobs_of_a_prompt_are_those_of_the_same_tokens_when_drawn) {
  const EngineLimits limits{.max_context = 512, .max_sequences = 4, .max_batched_tokens = 64};
  Loaded loaded(*files, engine::step_limits(limits, files->config.dims));
  engine::Engine engine(*loaded.be, loaded.gpt, limits);
  Request request{.prompt = files->tokenizer.encode("Once upon a time there was a"), .max_tokens = 30, .logprobs = 3};
  request.sampling.temperature = 0;
  const Answer drawn = ask(engine, {request}).at(0);
  ASSERT_EQ(drawn.logprobs.size(), 30u);
  for (const engine::TokenLogprobs& l : drawn.logprobs) {
    ASSERT_EQ(l.top.size(), 3u);
    EXPECT_EQ(l.value, l.top[0].value);  // greedy
    EXPECT_LE(std::exp(l.top[0].value) + std::exp(l.top[1].value) + std::exp(l.top[2].value), 1.0001);
  }
  Request echo = request;
  echo.prompt.insert(echo.prompt.end(), drawn.tokens.begin(), drawn.tokens.end());
  echo.max_tokens = 0;
  echo.prompt_logprobs = 3;
  const Answer scored = ask(engine, {echo}).at(0);
  ASSERT_EQ(scored.prompt_logprobs.size(), echo.prompt.size() - 1);
  const size_t first = request.prompt.size() - 1;
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(scored.prompt_logprobs[first + i].value, drawn.logprobs[i].value) << i;
}

}  // namespace
}  // namespace nibble
