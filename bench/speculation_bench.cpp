// What guesses cost and win: a step that verifies several tokens against one of a single token; sequences whose guesses
// are never right, or right with a chance, against the same without guesses.
//   build/cpu/src/app/speculation_bench [model] [cpu|cuda] [tokens per answer] [depth] [batches, as 1,8]
// A model that is no directory is one of the presets with random weights. The chance stands for what a text has: what
// comes is known from the run without guesses, and a guess of each token is that with the chance.

#include "app/backend_choice.h"
#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/error.h"
#include "engine/step_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using Clock = std::chrono::steady_clock;
using Answers = std::vector<std::vector<int32_t>>;

struct Shape {
  int64_t tokens = 256, depth = 128;
  std::vector<int> batches = {1, 8};
};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Oracle final : public engine::Proposer {
 public:
  Oracle(const Answers& answers, double right) : answers_(answers), right_(right) {}
  void propose(const Text& text, int most, engine::Draft& draft) override {
    const std::vector<int32_t>& all = answers_[(text.id - 1) % answers_.size()];
    draft.tokens.clear();
    draft.matched = 5;
    for (auto at = static_cast<size_t>(std::ssize(text.tokens) - text.prompt_tokens);
         at < all.size() && std::ssize(draft.tokens) < most; ++at) {
      const bool right = std::uniform_real_distribution<>(0, 1)(random_) < right_;
      draft.tokens.push_back(right ? all[at] : (all[at] + 1) % 1000);
    }
  }
  void ended(const Text&) override {}

 private:
  const Answers& answers_;
  double right_;
  std::mt19937_64 random_{5};
};

class Bench {
 public:
  Bench(LoadedModel& loaded, const Shape& shape, bool async) : loaded_(loaded), shape_(shape), async_(async) {}

  static engine::EngineLimits limits(const Shape& shape, bool async) {
    const int most = *std::max_element(shape.batches.begin(), shape.batches.end());
    const int64_t context = shape.depth + shape.tokens + 64;
    return {.max_context = context,
            .max_sequences = most,
            .max_batched_tokens = 512,
            .kv_tokens = context * most,
            .prefix_cache = false,
            .speculation = {.method = engine::DraftMethod::kSuffix},
            .async_scheduling = async};
  }

  // Median of steps of so many tokens behind the depth, the first known and the others guesses.
  void verify_cost() {
    backend::Backend& be = loaded_.backend();
    const std::vector<int32_t> prompt = tokens_of(0, shape_.depth);
    const backend::SamplingParams greedy{.temperature = 0};
    double single = 0;
    for (int64_t at = 0; at < shape_.depth; at += 256)
      model::forward(be, loaded_.model(),
                     engine::step_alone(std::span(prompt)
                                            .subspan(static_cast<size_t>(at))
                                            .first(static_cast<size_t>(std::min<int64_t>(256, shape_.depth - at))),
                                        at));
    for (const int tokens : {1, 2, 3, 4, 6, 8}) {
      std::vector<double> times;
      for (int round = 0; round < 40; ++round) {
        model::Step step = engine::step_alone(tokens_of(round + 1, tokens), shape_.depth);
        step.rows[0].drafted = tokens - 1;
        for (int t = 0; t < tokens; ++t) {
          step.logit_tokens.push_back(t);
          step.sample_rows.push_back({.params = &greedy, .position = shape_.depth + t + 1});
        }
        const auto start = Clock::now();
        static_cast<void>(be.wait(*model::forward(be, loaded_.model(), step)));
        times.push_back(since(start));
      }
      std::sort(times.begin(), times.end());
      const double median = times[times.size() / 2];
      if (tokens == 1) single = median;
      fmt::print("verify {} tokens: {:.3f} ms, {:.2f} of one, {:.3f} to {:.3f} in the middle half\n", tokens,
                 1e3 * median, median / single, 1e3 * times[times.size() / 4], 1e3 * times[times.size() * 3 / 4]);
      std::fflush(stdout);
    }
  }

  void answers(int batch) {
    Answers plain;
    const double without = run(batch, -1, nullptr, &plain);
    fmt::print("batch {}: no guesses {:.1f} tok/s\n", batch, without);
    for (const double right : {0.0, 0.5, 0.7, 0.9, 0.98}) {
      engine::EngineStats stats;
      const double again = run(batch, -1, nullptr, nullptr), with = run(batch, right, &plain, nullptr, &stats);
      const double base = run(batch, -1, nullptr, nullptr);
      fmt::print(
          "batch {}: right {:.2f}: {:.1f} tok/s, {:.3f} of {:.1f} ({:.1f} before, {:.1f} after); {} guesses, {} right\n",
          batch, right, with, 2 * with / (again + base), (again + base) / 2, again, base, stats.drafts.tokens,
          stats.drafts.accepted);
      std::fflush(stdout);
    }
  }

 private:
  [[nodiscard]] std::vector<int32_t> tokens_of(int seed, int64_t count) const {
    std::mt19937_64 random(static_cast<uint64_t>(seed) + 1);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    const auto vocab = static_cast<uint64_t>(loaded_.model().config.dims.vocab);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
    return tokens;
  }

  // Tokens per second from the last sequence's first token on; right < 0: without guesses.
  double run(int batch, double right, const Answers* known, Answers* answers, engine::EngineStats* stats = nullptr) {
    engine::EngineLimits with = limits(shape_, async_);
    if (right < 0) with.speculation.method = engine::DraftMethod::kOff;
    engine::Loop loop(loaded_.backend(), loaded_.model(), with);
    if (right >= 0) loop.propose_with(std::make_unique<Oracle>(*known, right));
    Answers got(static_cast<size_t>(batch));
    int begun = 0;
    int64_t tokens = 0;
    for (int i = 0; i < batch; ++i) {
      engine::Request request{.prompt = tokens_of(i, shape_.depth), .max_tokens = shape_.tokens};
      request.sampling.seed = static_cast<uint64_t>(i);
      loop.add(static_cast<engine::RequestId>(i) + 1, std::move(request), [&, i](const engine::Event& event) {
        const auto* token = std::get_if<engine::TokenEvent>(&event);
        if (token == nullptr) return;
        std::vector<int32_t>& to = got[static_cast<size_t>(i)];
        begun += to.empty() ? 1 : 0;
        to.push_back(token->token);
        ++tokens;
      });
    }
    while (begun < batch) loop.step();
    const auto start = Clock::now();
    const int64_t before = tokens;
    while (!loop.idle()) loop.step();
    const double seconds = since(start);
    if (known != nullptr && got != *known) fmt::print("  the tokens differ from those without guesses\n");
    if (stats != nullptr) *stats = loop.stats();
    if (answers != nullptr) *answers = std::move(got);
    return static_cast<double>(tokens - before) / seconds;
  }

  LoadedModel& loaded_;
  const Shape shape_;
  const bool async_;
};

int bench(const std::string& model, bool cuda, const Shape& shape) {
  Terminal terminal({.quiet = true});
  ModelOptions options;
  options.model = model;
  options.run.backend = cuda ? BackendKind::kCuda : BackendKind::kCpu;
  if (!std::filesystem::exists(model)) options.load_format = LoadFormat::kDummy;
  options = resolved(std::move(options));
  const ModelSource source = open_model(options, terminal);
  LoadedModel loaded(source, options, engine::step_limits(Bench::limits(shape, cuda), source.config.dims),
                     {terminal, {}});
  fmt::print("{}: {}; depth {}, answers of {} tokens\n", model, loaded.backend().modes(), shape.depth, shape.tokens);
  Bench bench(loaded, shape, cuda);
  bench.verify_cost();
  for (const int batch : shape.batches) bench.answers(batch);
  return 0;
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> all;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');) all.push_back(std::atoi(one.c_str()));
  return all;
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) try {
  const auto word = [&](int at, const char* otherwise) { return std::string(argc > at ? argv[at] : otherwise); };
  return nibble::app::bench(word(1, "models/nibble-tiny"), word(2, "cpu") == "cuda",
                            {.tokens = std::atoi(word(3, "256").c_str()),
                             .depth = std::atoi(word(4, "128").c_str()),
                             .batches = nibble::app::numbers(word(5, "1,8"))});
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
