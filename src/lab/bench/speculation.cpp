// `nibble bench --speculative`. Each run with guesses follows one without, so that other load on the machine affects
// both.

#include "lab/bench/speculation.h"

#include "app/options/build_facts.h"
#include "app/options/option.h"
#include "app/setup/backend_choice.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "backend/cost.h"
#include "base/error.h"
#include "base/read_json.h"
#include "base/thread_pool.h"
#include "convert/dummy_head.h"
#include "engine/sequence.h"
#include "lab/bench/bench.h"
#include "lab/bench/loop.h"
#include "lab/client/load_summary.h"
#include "lab/results/metadata.h"
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

namespace nibble::app {
namespace {

using Text = engine::Proposer::Text;

// A proposer on recorded texts.
class Replay {
 public:
  Replay(std::span<const RecordedText* const> texts, const engine::SpeculationLimits& limits)
      : proposer_(engine::make_proposer(limits)) {
    for (const RecordedText* text : texts) {
      texts_.push_back({std::ssize(text->prompt), text->prompt});
      texts_.back().tokens.insert(texts_.back().tokens.end(), text->answer.begin(), text->answer.end());
    }
  }

  Guess guess(const Text& text, int64_t at, int most) {
    const Text recorded = as_recorded(text, at);
    proposer_->propose(recorded, most, draft_);
    const auto next = std::span(texts_[index_of(text)].tokens).subspan(recorded.tokens.size());
    const auto right = std::ranges::mismatch(draft_.tokens, next).in1 - draft_.tokens.begin();
    return {static_cast<int>(draft_.tokens.size()), static_cast<int>(right), draft_.matched};
  }
  void ended(const Text& text) { proposer_->ended(as_recorded(text, std::ssize(text.tokens) - text.prompt_tokens)); }

 private:
  struct Whole {
    int64_t prompt;
    std::vector<int32_t> tokens;  // the answer's, too
  };
  [[nodiscard]] static size_t index_of(const Text& text) { return static_cast<size_t>(text.id - 1); }
  [[nodiscard]] Text as_recorded(const Text& text, int64_t at) const {
    const auto& [prompt, tokens] = texts_[index_of(text)];
    const auto known = static_cast<size_t>(std::min(prompt + at, std::ssize(tokens)));
    return {.id = text.id, .tokens = std::span(tokens).first(known), .prompt_tokens = prompt, .shares = true};
  }

  const std::unique_ptr<engine::Proposer> proposer_;
  std::vector<Whole> texts_;
  engine::Draft draft_;
};

// Adds up the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_since(start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Tokens that a step gives a sequence if each guess is right with this chance, given that those before it are.
double tokens_of(int drafted, double chance) {
  double sum = 1, product = 1;
  for (int i = 0; i < drafted; ++i) sum += product *= chance;
  return sum;
}

using Answers = std::vector<std::vector<int32_t>>;

constexpr std::array kDrafted = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

double median(const std::vector<double>& values) { return client::spread_of(values).p50; }

double seconds_now(bool cpu_time) {
  timespec now{};
  check(clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now) == 0, "a clock that is there");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A speed with guesses beside the one without.
struct GainRow {
  int batch = 1;
  std::string test;    // "acceptance 0.70", or the recorded set
  std::string method;  // who drafted: the recorded answers, or a proposer
  // Over all repetitions, without guesses and with them.
  int64_t plain_tokens = 0, tokens = 0;
  double plain_seconds = 0, seconds = 0;
  engine::DraftStats drafts{};
  DraftCosts costs{};
  double predicted = 0;  // gain; 0: not known
  [[nodiscard]] double plain_rate() const { return static_cast<double>(plain_tokens) / plain_seconds; }
  [[nodiscard]] double rate() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] double gain() const { return rate() / plain_rate(); }
  // Tokens per sequence and step, over the steps with a draft.
  [[nodiscard]] double acceptance_length() const {
    return 1 + static_cast<double>(drafts.accepted) / static_cast<double>(std::max<int64_t>(1, drafts.drafts));
  }
  [[nodiscard]] double propose_seconds() const {  // of a proposal
    return (costs.guessing + costs.drafting) / static_cast<double>(std::max<int64_t>(1, costs.proposals));
  }
};

constexpr std::string_view kVerifyHead =
    "| batch | guesses each | ms a step | of it drafting | of a step without | break-even acceptance |\n"
    "| ----: | -----------: | --------: | -------------: | ----------------: | --------------------: |\n";

std::string line_of(const VerifyRow& row) {
  const double even = row.drafted == 0 ? 0 : break_even(row.drafted, row.ratio);
  return fmt::format("| {:>5} | {:>12} | {:>9.3f} | {:>14.3f} | {:>17.3f} | {:>21} |\n", row.batch, row.drafted,
                     1e3 * row.seconds, 1e3 * row.drafting, row.ratio,
                     row.drafted == 0 ? "" : (even > 1 ? "none" : fmt::format("{:.2f}", even)));
}

Metadata json_of(const VerifyRow& row) {
  const double even = row.drafted == 0 ? 0 : break_even(row.drafted, row.ratio);
  return {{"batch", row.batch},     {"drafted", row.drafted},
          {"seconds", row.seconds}, {"drafting_seconds", row.drafting},
          {"ratio", row.ratio},     {"break_even_acceptance", even > 1 ? Metadata() : Metadata(even)}};
}

constexpr std::string_view kGainHead =
    "| batch | test                | drafts by | acceptance length | guesses |   right | µs to propose |  t/s without "
    "|      t/s | predicted |  gain |\n"
    "| ----: | ------------------- | --------- | ----------------: | ------: | ------: | ------------: | -----------: "
    "| -------: | --------: | ----: |\n";

std::string line_of(const GainRow& row) {
  return fmt::format(
      "| {:>5} | {:<19} | {:<9} | {:>17.2f} | {:>7} | {:>7} | {:>13.2f} | {:>12.1f} | {:>8.1f} | {:>9} | {:.3f} |\n",
      row.batch, row.test, row.method, row.acceptance_length(), row.drafts.tokens, row.drafts.accepted,
      1e6 * row.propose_seconds(), row.plain_rate(), row.rate(),
      row.predicted > 0 ? fmt::format("{:.3f}", row.predicted) : "", row.gain());
}

Metadata json_of(const GainRow& row) {
  return {{"batch", row.batch},
          {"test", row.test},
          {"method", row.method},
          {"acceptance_length", row.acceptance_length()},
          {"drafts", row.drafts.drafts},
          {"drafted", row.drafts.tokens},
          {"accepted", row.drafts.accepted},
          {"propose_seconds", row.propose_seconds()},
          {"plain_tokens_per_second", row.plain_rate()},
          {"tokens_per_second", row.rate()},
          {"predicted_gain", row.predicted > 0 ? Metadata(row.predicted) : Metadata()},
          {"gain", row.gain()}};
}

// Tokens of one sequence.
struct Length {
  int64_t prompt = 0, answer = 0;
};

class DraftBench {
 public:
  DraftBench(LoadedModel& loaded, const BenchOptions& options, const engine::EngineLimits& limits, bool cpu_time,
             Terminal& terminal)
      : loaded_(loaded), options_(options), limits_(limits), cpu_time_(cpu_time), terminal_(terminal) {
    if (limits.speculation.draft_model != nullptr) head_ = engine::make_proposer(limits.speculation);
  }

  struct Interrupted {};

  VerifyRow verify(int batch, int drafted) {
    const std::vector<Length> lengths = equal_lengths(batch);
    begin(fmt::format("batch {}, {} guesses", batch, drafted), 1 + options_.repetitions * (drafted == 0 ? 1 : 2));
    const Answers answers = run(lengths, options_.speculation).answers;
    engine::SpeculationLimits fixed = options_.speculation;
    fixed.adaptive = false;
    fixed.most_tokens = std::max(drafted, 1);
    const Guesses wrong = chance_guesses(0);
    std::vector<double> seconds, ratios, drafting;
    for (int i = 0; i < options_.repetitions; ++i) {
      const double without = run(lengths, fixed).seconds_per_step();
      const Run with = drafted == 0 ? Run() : run(lengths, fixed, &answers, &wrong);
      seconds.push_back(drafted == 0 ? without : with.seconds_per_step());
      ratios.push_back(seconds.back() / without);
      drafting.push_back(drafted == 0 ? 0 : with.costs.drafting / static_cast<double>(with.steps));
    }
    return {batch, drafted, median(seconds), median(ratios), median(drafting)};
  }

  GainRow chance(int batch, double acceptance, std::span<const VerifyRow> verify) {
    GainRow row{.batch = batch,
                .test = fmt::format("acceptance {:.2f}", acceptance),
                .method = !head_                                ? "answers"
                          : limits_.speculation.head != nullptr ? "a head"
                                                                : "a model"};
    const double chance = chance_of(acceptance, options_.speculation.most_tokens);
    row.predicted = predicted_gain(chance, verify);
    begin(fmt::format("batch {}, {}", batch, row.test), 2 * options_.repetitions);
    for (int i = 0; i < options_.repetitions; ++i) add_run(row, equal_lengths(batch), chance_guesses(chance));
    return row;
  }

  // Each repetition starts with a different text; together they use all of them.
  GainRow replay(int batch, const std::string& set, std::span<const RecordedText* const> texts) {
    GainRow row{.batch = batch, .test = set, .method = std::string(engine::name_of(options_.speculation.method))};
    const int for_all = (static_cast<int>(texts.size()) + batch - 1) / batch;
    const int repetitions = std::max(options_.repetitions, for_all);
    begin(fmt::format("batch {}, {}", batch, set), 2 * repetitions);
    for (int i = 0; i < repetitions; ++i) {
      std::vector<Length> lengths;
      std::vector<const RecordedText*> of;
      for (int s = 0; s < batch; ++s) {
        of.push_back(texts[static_cast<size_t>(i * batch + s) % texts.size()]);
        lengths.push_back({std::ssize(of.back()->prompt), std::ssize(of.back()->answer)});
      }
      add_run(row, lengths, replayed_guesses(of, options_.speculation));
    }
    return row;
  }

 private:
  struct Run {
    Answers answers;
    int64_t tokens = 0, steps = 0;  // from where all sequences had their first token
    double seconds = 0;
    DraftCosts costs;
    engine::DraftStats drafts;
    [[nodiscard]] double seconds_per_step() const { return seconds / static_cast<double>(steps); }
  };

  // Starts progress for this many runs.
  void begin(std::string what, int runs) {
    what_ = std::move(what);
    runs_ = runs;
    run_ = 0;
  }
  void show(double share_of_run) {
    terminal_.progress(what_, (run_ + share_of_run) / runs_, fmt::format("run {} of {}", run_ + 1, runs_));
  }

  [[nodiscard]] std::vector<Length> equal_lengths(int batch) const {
    return std::vector<Length>(static_cast<size_t>(batch), {options_.depths[0] + 1, options_.generates[0]});
  }

  void add_run(GainRow& row, const std::vector<Length>& lengths, const Guesses& guesses) {
    const Run plain = run(lengths, options_.speculation);
    const Run with = run(lengths, options_.speculation, &plain.answers, &guesses);
    row.plain_tokens += plain.tokens;
    row.tokens += with.tokens;
    row.plain_seconds += plain.seconds;
    row.seconds += with.seconds;
    row.costs.guessing += with.costs.guessing;
    row.costs.drafting += with.costs.drafting;
    row.costs.proposals += with.costs.proposals;
    row.drafts.drafts += with.drafts.drafts;
    row.drafts.tokens += with.drafts.tokens;
    row.drafts.accepted += with.drafts.accepted;
  }

  // With guesses at the answers, or without. A token is drawn so hot that noise decides, which its seed and place
  // give: where steps of other sizes sum otherwise, as kernels of cards do, a text is the same nearly everywhere, and
  // guesses of the answer stay right.
  Run run(const std::vector<Length>& lengths, const engine::SpeculationLimits& drafts, const Answers* answers = nullptr,
          const Guesses* guesses = nullptr) {
    engine::EngineLimits limits = limits_;
    limits.speculation = drafts;
    // Whatever looks up: the proposer is given.
    limits.speculation.method = guesses == nullptr ? engine::DraftMethod::kOff : engine::DraftMethod::kSuffix;
    // The engine decides by the clock that is measured.
    engine::Loop loop(loaded_.backend(), loaded_.model(), limits, [cpu_time = cpu_time_] {
      using Time = engine::Sequence::Time;
      return Time(std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds_now(cpu_time))));
    });
    Run run;
    if (guesses != nullptr)
      loop.propose_with(std::make_unique<AnswersProposer>(*answers, *guesses, head_.get(), run.costs));
    run.answers.resize(lengths.size());
    size_t begun = 0;
    int64_t asked = 0;
    std::optional<Error> failure;
    for (size_t i = 0; i < lengths.size(); ++i) {
      asked += lengths[i].answer;
      engine::Request request{.prompt = random_tokens(i, lengths[i].prompt, loaded_.model().config.dims.vocab),
                              .max_tokens = lengths[i].answer,
                              .sampling = {.temperature = backend::kMaxTemperature, .seed = i},
                              .stop_ids = {}};
      loop.add(i + 1, std::move(request), [&, i](const engine::Event& event) {
        if (const auto* end = std::get_if<engine::Finished>(&event)) {
          if (end->reason == engine::FinishReason::kFailed) failure.emplace(end->code, end->message);
          return;
        }
        begun += run.answers[i].empty() ? 1 : 0;
        run.answers[i].push_back(std::get<engine::TokenEvent>(event).token);
        ++run.tokens;
      });
    }
    const auto step = [&] {
      if (interrupt_.requested()) throw Interrupted{};
      show(static_cast<double>(run.tokens) / static_cast<double>(asked));
      loop.step();
      if (failure) throw Error(*failure);
    };
    while (begun < lengths.size()) step();
    if (loop.stats().running < std::ssize(lengths))
      throw Error(
          Code::kInvalidRequest,
          "--speculative: want -n (or answers) and -b so that all {} sequences are under way at once; some ended before the last prompt was read",
          lengths.size());
    const int64_t tokens = run.tokens, steps = loop.stats().steps;
    run.costs.drafting = 0;
    const double start = seconds_now(cpu_time_);
    const bool equal =
        std::ranges::all_of(lengths, [&](const Length& each) { return each.answer == lengths[0].answer; });
    while (equal ? loop.stats().running == std::ssize(lengths) : !loop.idle()) step();
    run.seconds = seconds_now(cpu_time_) - start;
    run.tokens -= tokens;
    run.steps = loop.stats().steps - steps;
    run.drafts = loop.stats().drafts;
    loop.cancel_all();
    while (!loop.idle()) loop.step();
    ++run_;
    return run;
  }

  LoadedModel& loaded_;
  const BenchOptions& options_;
  const engine::EngineLimits limits_;
  const bool cpu_time_;                     // the clock that is measured by
  std::unique_ptr<engine::Proposer> head_;  // of eagle3; of draft: another model
  Terminal& terminal_;
  const Interrupt interrupt_;
  std::string what_;
  int runs_ = 1, run_ = 0;
};

engine::EngineLimits limits_of(const BenchOptions& options, std::span<const RecordedText> texts) {
  int64_t context = options.depths[0] + 1 + options.generates[0];
  int64_t longest_prompt = 0, shortest_answer = std::numeric_limits<int64_t>::max();
  for (const RecordedText& text : texts) {
    context = std::max(context, std::ssize(text.prompt) + std::ssize(text.answer));
    longest_prompt = std::max(longest_prompt, std::ssize(text.prompt));
    shortest_answer = std::min(shortest_answer, std::ssize(text.answer));
  }
  context += backend::kPageTokens;
  const auto batch = static_cast<int>(options.batches.back());
  // Steps so large that all prompts are read before the shortest answer is half over.
  const auto reading = static_cast<int>(batch * (1 + 2 * longest_prompt / shortest_answer));
  return {.max_context = context,
          .max_sequences = batch,
          .max_batched_tokens = std::max(
              {options.model.run.max_num_batched_tokens, batch * (1 + options.speculation.most_tokens), reading}),
          .kv_tokens = context * batch,
          .target_itl_seconds = std::numeric_limits<double>::infinity(),
          .prefix_cache = false,
          .speculation = options.speculation,
          .async_scheduling = options.model.run.backend == BackendKind::kCuda};
}

void check_asked(const BenchOptions& options) {
  if (options.profile || options.tune)
    throw Error(Code::kInvalidRequest, "--speculative: want it without --profile and --tune");
  const bool looks_up = options.speculation.method == engine::DraftMethod::kNgram ||
                        options.speculation.method == engine::DraftMethod::kSuffix;
  if (!looks_up && !options.recorded.empty())
    throw Error(Code::kInvalidRequest,
                "--speculative-texts: want --speculative ngram or suffix, found {}: nobody knows what it would draft "
                "there",
                engine::name_of(options.speculation.method));
  if (options.speculation.method != engine::DraftMethod::kDraft && !options.model.speculative_model.empty())
    throw Error(Code::kInvalidRequest, "--speculative-model: want --speculative draft, found {}",
                engine::name_of(options.speculation.method));
  const double most = 1 + options.speculation.most_tokens;
  if (const auto over = std::ranges::find_if(options.acceptances, [&](double each) { return each > most; });
      over != options.acceptances.end())
    throw Error(Code::kInvalidRequest, "--speculative-acceptance: want up to {} tokens a step, found {}", most, *over);
  if (options.depths.size() != 1 || options.generates.size() != 1 || options.generates[0] < 8)
    throw Error(Code::kInvalidRequest, "--speculative: want one -d, and one -n of 8 or more");
}

}  // namespace

Guesses chance_guesses(double chance) {
  return {.guess = [is_right = std::bernoulli_distribution(chance), random = std::mt19937_64(5)](
                       const Text& /*text*/, int64_t /*at*/, int most) mutable -> Guess {
    int right = 0;
    while (right < most && is_right(random)) ++right;
    return {most, right, 5};
  }};
}

Guesses replayed_guesses(std::span<const RecordedText* const> texts, const engine::SpeculationLimits& limits) {
  const auto replay = std::make_shared<Replay>(texts, limits);
  return {.guess = [replay](const Text& text, int64_t at, int most) { return replay->guess(text, at, most); },
          .ended = [replay](const Text& text) { replay->ended(text); }};
}

void AnswersProposer::saw(std::span<const News> all) {
  if (head_ == nullptr) return;
  const Stopwatch timed(costs_.drafting);
  head_->saw(all);
}

int64_t AnswersProposer::read(std::span<const Text> texts) {
  if (head_ == nullptr) return 0;
  const Stopwatch timed(costs_.drafting);
  return head_->read(texts);
}

void AnswersProposer::guess(const Order& asked) {
  const Stopwatch timed(costs_.guessing);
  ++costs_.proposals;
  const std::vector<int32_t>& answer = answers_[static_cast<size_t>(asked.text.id - 1)];
  const int64_t at = std::ssize(asked.text.tokens) - asked.text.prompt_tokens;
  const auto [length, right, matched] = guesses_.guess(asked.text, at, asked.most);
  std::vector<int32_t>& tokens = asked.draft->tokens;
  tokens.clear();
  asked.draft->matched = matched;
  for (int i = 0; i < length && at + i < std::ssize(answer); ++i) {
    const int32_t next = answer[static_cast<size_t>(at + i)];
    tokens.push_back(i < right ? next : (next == 0 ? 1 : next - 1));
  }
}

void AnswersProposer::propose(const Text& text, int most, engine::Draft& draft) {
  const Order asked{.text = text, .most = most, .draft = &draft};
  propose_all({&asked, 1});
}

void AnswersProposer::propose_all(std::span<const Order> all) {
  if (head_ != nullptr) {
    const Stopwatch timed(costs_.drafting);
    drafts_.resize(std::max(drafts_.size(), all.size()));
    std::vector<Order> of_head(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) of_head[i].draft = &drafts_[i];
    head_->propose_all(of_head);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    guess(all[i]);
    if (head_ == nullptr) continue;
    engine::Draft& draft = *all[i].draft;
    draft.tokens.resize(std::min(draft.tokens.size(), drafts_[i].tokens.size()));
    draft.matched = drafts_[i].matched;
  }
}

void AnswersProposer::ended(const Text& text) {
  if (head_ != nullptr) head_->ended(text);
  guesses_.ended(text);
}

std::vector<RecordedText> read_recorded(const std::filesystem::path& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::o200k_harmony();
  std::vector<RecordedText> texts;
  int number = 0;
  for (const std::string& line : split(read_text(file), '\n')) {
    ++number;
    if (line.empty()) continue;
    const auto json = read_json(line);
    const auto field = [&](const char* name) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_string() || json[name] == "")
        throw Error(Code::kCorrupt, "{}: line {}: want an object with the text \"{}\"", file.string(), number, name);
      return json[name].get<std::string>();
    };
    texts.push_back({.set = field("set"),
                     .prompt = tokenizer.encode(field("prompt")),
                     .answer = tokenizer.encode(field("answer"))});
  }
  if (texts.empty()) throw Error(Code::kCorrupt, "{}: want lines of JSON, found none", file.string());
  return texts;
}

double break_even(int drafted, double ratio) {
  double below = 0, above = 1;
  while (tokens_of(drafted, above) < ratio) above *= 2;
  for (int i = 0; i < 50; ++i) (tokens_of(drafted, (below + above) / 2) < ratio ? below : above) = (below + above) / 2;
  return ratio <= 1 ? 0 : above;
}

double chance_of(double acceptance, int most) { return acceptance <= 1 ? acceptance : break_even(most, acceptance); }

double predicted_gain(double chance, std::span<const VerifyRow> rows) {
  double best = 1;
  for (const VerifyRow& row : rows)
    if (row.drafted > 0) best = std::max(best, tokens_of(row.drafted, chance) / row.ratio);
  return best;
}

int bench_drafts(const BenchOptions& asked) {
  check_asked(asked);
  Terminal terminal(asked.output);
  std::vector<RecordedText> texts;
  for (const std::string& file : asked.recorded) std::ranges::move(read_recorded(file), std::back_inserter(texts));
  std::map<std::string, std::vector<const RecordedText*>> sets;
  for (const RecordedText& text : texts) sets[text.set].push_back(&text);
  BenchOptions options = asked;
  if (asked.speculation.method == engine::DraftMethod::kDraft) options.model.speculation = asked.speculation;
  const auto steps_of = [&](const model::ModelConfig& config) {
    model::StepLimits steps = engine::step_limits(limits_of(options, texts), config.dims);
    if (options.speculation.method == engine::DraftMethod::kEagle3) steps.taps = convert::dummy_head_boundaries(config);
    return steps;
  };
  options.model = resolved_model(
      with_backend(with_files(options.model, terminal),
                   [&](const ModelOptions&, const model::ModelConfig& config) { return steps_of(config); }));
  terminal.progress("measuring the device", 0, "");
  const backend::DevicePeaks peaks = measured(options.model);
  const auto start = std::chrono::steady_clock::now();
  ModelSource source = open_model(options.model, terminal);
  engine::EngineLimits limits = limits_of(options, texts);
  if (options.speculation.method == engine::DraftMethod::kEagle3) {
    terminal.progress("making a head", 0, "");
    ThreadPool pool(thread_count(options.model));
    source.head = std::make_unique<model::eagle3::Head>(
        convert::dummy_head({source.config, source.weights}, {.draft_vocab = options.draft_vocab, .pool = &pool}));
    limits = with_head(limits, source);
  }
  LoadedModel loaded(source, options.model, engine::step_limits(limits, source.config.dims), {terminal, {}});
  limits = loaded.with_draft(limits);
  const double startup = seconds_since(start);

  // Other programs on the same processors distort wall time, but not a thread's own CPU time.
  const bool cpu_time = options.model.run.backend != BackendKind::kCuda && options.model.run.threads == 1;
  const std::string clock = cpu_time ? "of the processor" : "on the wall";
  const bool markdown = options.format == BenchFormat::kMarkdown;
  const auto print = [&](std::string_view text) {
    terminal.end_progress();
    if (markdown) terminal.print(text);
  };
  print(fmt::format("nibble {} ({}): `{}`\n\n- model {}, {}; device {}, reads {}/s; seconds {}\n\n", NIBBLE_VERSION,
                    build_facts().commit, options.command, options.model.name, loaded.backend().modes(), peaks.device,
                    format_bytes(peaks.read_bytes_per_s), clock));
  Metadata json = {{"speculation", {{"verify", Metadata::array()}, {"gains", Metadata::array()}}}};
  const auto add = [&](const char* to, const auto& row) {
    print(line_of(row));
    json["speculation"][to].push_back(json_of(row));
  };
  DraftBench bench(loaded, options, limits, cpu_time, terminal);
  std::map<int, std::vector<VerifyRow>> verify;  // by batch
  bool interrupted = false;
  try {
    print(kVerifyHead);
    for (const int64_t batch : options.batches)
      for (const int drafted : kDrafted)
        if (std::vector<VerifyRow>& rows = verify[static_cast<int>(batch)]; drafted <= options.speculation.most_tokens)
          add("verify", rows.emplace_back(bench.verify(static_cast<int>(batch), drafted)));
    print("\n");
    print(kGainHead);
    for (const auto& [batch, rows] : verify) {
      for (const double acceptance : options.acceptances) add("gains", bench.chance(batch, acceptance, rows));
      for (const auto& [set, of] : sets) add("gains", bench.replay(batch, set, of));
    }
    print("\n");
  } catch (const DraftBench::Interrupted&) {
    interrupted = true;
  }
  terminal.end_progress();
  if (!markdown) {
    json["speculation"]["seconds"] = clock;
    json["metadata"] =
        bench_metadata(options, "a run without guesses before each", startup, {source, options.model, peaks});
    json["interrupted"] = interrupted;
    terminal.print_json(json);
  }
  return bench_ended(interrupted, terminal);
}

}  // namespace nibble::app
