// What nibble-tiny's own EAGLE-3 head gains on a CPU, on texts that the model writes: continued stories of heldout.txt
// and short chats, greedy, one at a time, processor time behind the first token.
//   head_bench [threads] [tokens] [repetitions] [pieces of heldout.txt] [most guesses] [a row's name: that one alone]
// A run without guesses and those with them take turns on each text, so that other load meets them all; of each text
// the medians over the repetitions are added up. The engine's clock is the processor's, too. "fixed": each step has so
// many guesses, whatever they cost; of them "cost" is a step's time in steps without, and "verify" the same when the
// guesses come from nowhere and are wrong.

#include "backend/cpu/cpu_backend.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "model/hf_config.h"
#include "engine/draft_model_proposer.h"
#include "engine/loop.h"
#include "model/eagle3/head.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "text/harmony_render.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace nibble {
namespace {

constexpr int kMostGuesses = 7;

double seconds_now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
engine::Sequence::Time now() {
  return engine::Sequence::Time(
      std::chrono::duration_cast<engine::Sequence::Time::duration>(std::chrono::duration<double>(seconds_now())));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Guesses that no model would make.
class Wrong final : public engine::Proposer {
 public:
  void propose(const Text& text, int most, engine::Draft& draft) override {
    draft.tokens.assign(static_cast<size_t>(most), text.tokens.front());
  }
  void ended(const Text&) override {}
};

struct Text {
  bool chat;
  std::vector<int32_t> prompt;
};

struct Ways {
  std::string name;
  int guesses = 0;  // 0: none
  bool adaptive = true, wrong = false;
};

struct Run {
  double seconds = 0;  // behind the first token
  int64_t tokens = 0, steps = 0;
  engine::DraftStats drafts;
};

class Bench {
 public:
  Bench(const std::filesystem::path& folder, int threads, int tokens)
      : threads_(threads),
        tokens_(tokens),
        checkpoint_(checkpoint::Checkpoint::open(folder)),
        config_(model::read_hf_config(folder).config),
        weights_(model::bind_weights(checkpoint_.entries(), config_)),
        tokenizer_(text::Tokenizer::from_file(folder / "tokenizer.json")),
        head_(model::eagle3::load(folder / "eagle3", {config_, weights_}, model::eagle3::TapReading::kAuto)),
        be_(backend::make_cpu_backend(
            model::backend_config(config_,
                                  engine::step_limits(limits({.method = engine::DraftMethod::kSuffix}), config_.dims)),
            {.threads = threads})),
        gpt_(model::load(*be_, config_, weights_)),
        head_limits_(engine::head_step_limits(
            engine::step_limits(limits({.method = engine::DraftMethod::kSuffix}), config_.dims))),
        head_be_(backend::make_cpu_backend(model::eagle3::backend_config(head_, head_limits_), {.threads = threads})),
        head_gpt_(model::load(*head_be_, head_.config, head_.weights)),
        drafts_{.be = *head_be_, .model = head_gpt_, .limits = head_limits_, .head = &head_} {}

  [[nodiscard]] std::string modes() const { return be_->modes(); }

  [[nodiscard]] std::vector<Text> texts(const std::filesystem::path& folder, int pieces) const {
    std::vector<Text> all;
    const std::string held_out = read_text_file(folder / "heldout.txt", 1 << 20);
    for (int i = 0; i < pieces; ++i) {
      const size_t at = held_out.size() / static_cast<size_t>(pieces) * static_cast<size_t>(i);
      all.push_back({.chat = false, .prompt = tokenizer_.encode(held_out.substr(at, 200))});
    }
    for (const char* question : {"What is the capital of France?", "What is 17 + 25?", "Tell me a story about a dog.",
                                 "What is the capital of Japan?", "What is 81 - 36?",
                                 "Tell me a story about a brave girl.", "Who are you?", "What color is the sky?"}) {
      text::Conversation chat;
      chat.messages.push_back({.role = text::Role::kSystem, .content = {text::SystemOptions{}}});
      chat.messages.push_back({.role = text::Role::kUser, .content = {std::string(question)}});
      all.push_back({.chat = true,
                     .prompt = text::to_tokens(text::render_for_completion(chat), ids_,
                                               [&](std::string_view text) { return tokenizer_.encode(text); })});
    }
    return all;
  }

  [[nodiscard]] Run run(const Text& text, const Ways& way) {
    engine::SpeculationLimits drafts;
    if (way.guesses > 0)
      drafts = {.method = way.wrong ? engine::DraftMethod::kSuffix : engine::DraftMethod::kEagle3,
                .most_tokens = way.guesses,
                .head = &head_,
                .draft_model = &drafts_,
                .adaptive = way.adaptive};
    engine::Loop loop(*be_, gpt_, limits(drafts), now);
    if (way.wrong) loop.propose_with(std::make_unique<Wrong>());
    engine::Request request{.prompt = text.prompt, .max_tokens = tokens_, .prefix_cache = false};
    request.stop_ids = config_.eos_ids;
    request.sampling.temperature = 0;
    Run run;
    double from = 0, to = 0;
    int64_t steps = 0;
    loop.serve(std::move(request), [&](const engine::TokenEvent&) {
      to = seconds_now();
      if (run.tokens++ == 0) from = to, steps = loop.stats().steps;
      return true;
    });
    run.seconds = to - from;
    --run.tokens;
    run.steps = loop.stats().steps - steps;
    run.drafts = loop.stats().drafts;
    return run;
  }

 private:
  [[nodiscard]] engine::EngineLimits limits(const engine::SpeculationLimits& drafts) const {
    return {.max_context = 1024,
            .max_sequences = 1,
            .max_batched_tokens = 256,
            .kv_tokens = 2048,
            .speculation = drafts,
            .async_scheduling = false};
  }

  int threads_, tokens_;
  checkpoint::Checkpoint checkpoint_;
  model::ModelConfig config_;
  std::vector<backend::HostWeight> weights_;
  text::Tokenizer tokenizer_;
  text::HarmonyIds ids_ =
      text::HarmonyIds::from_names([this](std::string_view name) { return tokenizer_.special_id(name); });
  model::eagle3::Head head_;
  std::unique_ptr<backend::Backend> be_;
  model::GptOss gpt_;
  model::StepLimits head_limits_;
  std::unique_ptr<backend::Backend> head_be_;
  model::GptOss head_gpt_;
  engine::DraftModel drafts_;
};

void add(Run& sum, const Run& run) {
  sum.seconds += run.seconds;
  sum.tokens += run.tokens;
  sum.steps += run.steps;
  sum.drafts.drafts += run.drafts.drafts;
  sum.drafts.tokens += run.drafts.tokens;
  sum.drafts.accepted += run.drafts.accepted;
  for (size_t i = 0; i < sum.drafts.accepted_at.size(); ++i) sum.drafts.accepted_at[i] += run.drafts.accepted_at[i];
}

void print(const Ways& way, const Run& run, const Run& plain) {
  const double step = plain.seconds / static_cast<double>(plain.steps);
  std::printf("| %-10s | %6lld | %6.1f | %5.3f | %5.2f | %5.2f |", way.name.c_str(), static_cast<long long>(run.tokens),
              1e3 * run.seconds,
              plain.seconds / run.seconds * static_cast<double>(run.tokens) / static_cast<double>(plain.tokens),
              run.seconds / static_cast<double>(run.steps) / step,
              static_cast<double>(run.tokens) / static_cast<double>(run.steps));
  std::printf(" %lld of %lld:", static_cast<long long>(run.drafts.accepted), static_cast<long long>(run.drafts.tokens));
  for (int i = 0; i < way.guesses && run.drafts.drafts > 0; ++i)
    std::printf(" %.2f", static_cast<double>(run.drafts.accepted_at[static_cast<size_t>(i)]) /
                             static_cast<double>(run.drafts.drafts));
  std::printf(" |\n");
}

void bench(int threads, int tokens, int repetitions, int pieces, int most, const std::string& only) {
  const std::filesystem::path folder = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";
  Bench bench(folder, threads, tokens);
  std::vector<Ways> ways = {{.name = "none"}};
  for (const bool adaptive : {true, false})
    for (int guesses = 1; guesses <= most; ++guesses)
      ways.push_back({.name = (adaptive ? "up to " : "fixed ") + std::to_string(guesses),
                      .guesses = guesses,
                      .adaptive = adaptive});
  for (int guesses = 1; guesses <= most; ++guesses)
    ways.push_back({.name = "verify " + std::to_string(guesses), .guesses = guesses, .adaptive = false, .wrong = true});
  std::erase_if(ways, [&](const Ways& way) { return !only.empty() && way.name != only; });
  std::printf("%s\n", bench.modes().c_str());
  const std::vector<Text> texts = bench.texts(folder, pieces);
  std::array<std::vector<Run>, 2> sums = {std::vector<Run>(ways.size()), std::vector<Run>(ways.size())};
  for (const Text& text : texts) {
    std::vector<std::vector<double>> seconds(ways.size());
    std::vector<Run> last(ways.size());
    for (int r = 0; r < repetitions; ++r) {
      for (size_t w = 0; w < ways.size(); ++w) {
        last[w] = bench.run(text, ways[w]);
        seconds[w].push_back(last[w].seconds);
      }
    }
    for (size_t w = 0; w < ways.size(); ++w) {
      if (last[w].tokens == 0) continue;
      last[w].seconds = median(seconds[w]);
      add(sums[text.chat ? 1 : 0][w], last[w]);
    }
  }
  for (const bool chat : {false, true}) {
    std::printf(
        "\n%s\n\n| guesses    | tokens |     ms |  gain |  cost | tok/s. | right, by place |\n|---|---|---|---|---|---|---|\n",
        chat ? "short chats" : "stories of heldout.txt");
    for (size_t w = 0; w < ways.size(); ++w) print(ways[w], sums[chat ? 1 : 0][w], sums[chat ? 1 : 0][0]);
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  try {
    nibble::bench(argument(1, 1), argument(2, 128), argument(3, 5), argument(4, 8),
                  std::min(argument(5, 4), nibble::kMostGuesses), argc > 6 ? argv[6] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
