#include "app/options/option.h"

#include "app/options/option_rows.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace nibble::app {
namespace {

using Kind = Range::Kind;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

std::string range_text(const Range& range) {
  return fmt::format("{} to {}{}{}", static_cast<int64_t>(range.least), static_cast<int64_t>(range.most),
                     range.word.empty() ? "" : " or ", range.word);
}

bool has(const Range& range, std::optional<int64_t> value) {
  return value && static_cast<double>(*value) >= range.least && static_cast<double>(*value) <= range.most;
}

int64_t read_whole(std::string_view flag, const Range& range, const std::string& found) {
  const std::optional<int64_t> value = number_in<int64_t>(found);
  if (!range.word.empty() && (found == range.word || value == -1)) return -1;
  if (!has(range, value))
    refuse_value(flag, fmt::format("want a whole number from {}, found {}", range_text(range), found));
  return *value;
}

double read_real(std::string_view flag, const Range& range, const std::string& found) {
  char* rest = nullptr;
  const double value = std::strtod(found.c_str(), &rest);
  if (found.empty() || rest != found.c_str() + found.size() || !std::isfinite(value))
    refuse_value(flag, fmt::format("want a finite number, found {}", found));
  if (range.kind == Kind::kPositive && value <= 0)
    refuse_value(flag, fmt::format("want a number above 0, found {}", found));
  if (range.kind == Kind::kReal && (value < range.least || value > range.most))
    refuse_value(flag, fmt::format("want a number from {} to {}, found {}", range.least, range.most, found));
  return value;
}

std::vector<int64_t> read_list(std::string_view flag, const Range& range, const std::string& found) {
  std::vector<int64_t> values;
  for (const std::string& word : split(found, ',')) {
    const std::optional<int64_t> value = number_in<int64_t>(word);
    if (!has(range, value))
      refuse_value(flag, fmt::format("want numbers from {} such as 1,2,4, found {}", range_text(range), found));
    values.push_back(*value);
  }
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
  return values;
}

int read_word(std::string_view flag, const Range& range, const std::string& found) {
  const auto it = std::ranges::find(range.words, found, &Word::word);
  if (it != range.words.end()) return it->value;
  std::vector<std::string_view> names;
  for (const Word& word : range.words) names.push_back(word.word);
  refuse_value(flag, fmt::format("want {}, found {}", fmt::join(names, " or "), found));
}

std::string_view word_of(const Range& range, int value) {
  const auto it = std::ranges::find(range.words, value, &Word::value);
  return it == range.words.end() ? std::string_view() : it->word;
}

std::string yes_or_no(bool yes) { return yes ? "true" : "false"; }

// Levenshtein's distance.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

bool is_one_of(std::string text, std::initializer_list<std::string_view> words) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(words, text) != words.end();
}

template <class Options>
Parts parts_in(Options& o) {
  Parts parts{};
  const auto add = [&parts](auto& part) { std::get<std::remove_reference_t<decltype(part)>*>(parts) = &part; };
  add(o);
  if constexpr (requires { o.output; }) add(o.output);
  if constexpr (requires { o.settings; }) add(o.settings);
  if constexpr (requires { o.workload; }) add(o.workload);
  if constexpr (requires { o.kv_events; }) add(o.kv_events);
  if constexpr (requires { o.sampling; }) add(o.sampling);
  if constexpr (requires { o.prompt.given; }) add(o.prompt);
  if constexpr (requires { o.input.given; }) add(o.input);
  if constexpr (requires { o.generate; }) add(o.generate), add(o.generate.sampling);
  if constexpr (requires { o.model.run; })
    add(o.model), add(o.model.settings), add(o.model.group), add(o.model.run), add(o.model.run.ranks),
        add(o.model.speculation);
  if constexpr (requires { o.speculation; }) add(o.speculation);  // bench: not of the model that runs
  return parts;
}

}  // namespace

std::string_view name_of(Effect effect) {
  constexpr std::string_view kNames[] = {"exact", "lossy", "as chosen"};
  return kNames[static_cast<size_t>(effect)];
}

std::string_view name_of(Runs runs) {
  constexpr std::string_view kNames[] = {"–", "yes", "as values", "not run"};
  return kNames[static_cast<size_t>(runs)];
}

Parts parts_of(Command& command) {
  return std::visit([](auto& options) { return parts_in(options); }, command);
}
Parts parts_of(ServeOptions& options) { return parts_in(options); }

std::string Option::name() const {
  std::string name;
  for (std::string& each : split(flag, ',')) {
    if (each.starts_with('!')) each.erase(0, 1);
    if (each.starts_with("--") || name.empty()) name = std::move(each);
    if (name.starts_with("--")) break;
  }
  return name;
}

bool Option::has_name(std::string_view name) const {
  for (const std::string& each : split(flag, ','))
    if (each.substr(each.starts_with('!') ? 1 : 0) == name) return true;
  return false;
}

std::string Option::usual() const {
  if (!traits.feature.usual.empty()) return std::string(traits.feature.usual);
  ServeOptions nothing;
  return shown_value(*this, place.in(parts_in(nothing)));
}

const Word* Option::word_named(std::string_view word) const {
  const auto it = std::ranges::find(range.words, word, &Word::word);
  return it == range.words.end() ? nullptr : &*it;
}

const Option* option_named(CommandId command, std::string_view name) {
  for (const Option& option : option_table())
    if (option.commands.has(command) && option.has_name(name)) return &option;
  return nullptr;
}

void refuse_value(std::string_view flag, const std::string& why) {
  throw Error(Code::kInvalidRequest, "{}: {}", flag, why);
}

void read_seed(std::string_view flag, const std::string& found, const ValueRef& into) {
  const std::optional<uint64_t> seed = number_in<uint64_t>(found);
  if (!seed) refuse_value(flag, fmt::format("want a whole number from 0 to 2^64 - 1, found {}", found));
  *std::get<uint64_t*>(into) = *seed;
}

std::string read_value(const Option& option, const ValueRef& into, const std::string& found) {
  const std::string flag = option.name();
  const Range& range = option.range;
  if (range.kind == Kind::kSwitch) {
    if (const std::string wrong = neither_yes_nor_no(found); !wrong.empty()) refuse_value(flag, wrong);
    const bool yes = is_true(found);
    std::visit(Overloaded{[&](bool* value) { *value = yes; }, [&](std::optional<bool>* value) { *value = yes; },
                          [&](const WordRef& word) {
                            if (yes) word.set(word.at, range.words.front().value);
                          },
                          [](const auto&) {}},
               into);
    return found;
  }
  if (range.filled && found.empty()) refuse_value(flag, "want a value, found an empty one");
  if (const std::string wrong = range.wrong == nullptr ? "" : range.wrong(found); !wrong.empty())
    refuse_value(flag, wrong);
  if (range.read != nullptr) {
    range.read(flag, found, into);
    return found;
  }
  if (range.kind == Kind::kWhole) {
    const int64_t whole = read_whole(flag, range, found);
    std::visit(
        Overloaded{[&](int* value) { *value = static_cast<int>(whole); }, [&](int64_t* value) { *value = whole; },
                   [&](std::vector<int64_t>* values) { values->push_back(whole); }, [](const auto&) {}},
        into);
    return whole == -1 && !range.word.empty() ? std::string(range.word) : fmt::format("{}", whole);
  }
  std::visit(Overloaded{[&](bool* value) { *value = read_word(flag, range, found) != 0; },
                        [&](const WordRef& word) { word.set(word.at, read_word(flag, range, found)); },
                        [&](float* value) { *value = static_cast<float>(read_real(flag, range, found)); },
                        [&](double* value) { *value = read_real(flag, range, found); },
                        [&](std::optional<double>* value) { *value = read_real(flag, range, found); },
                        [&](std::vector<int64_t>* values) { *values = read_list(flag, range, found); },
                        [&](std::string* value) {
                          if (range.kind == Kind::kWords) read_word(flag, range, found);
                          *value = found;
                        },
                        [&](std::filesystem::path* value) { *value = found; },
                        [&](std::vector<std::string>* values) { values->push_back(found); }, [](const auto&) {}},
             into);
  return found;
}

std::string shown_value(const Option& option, const ValueRef& value) {
  const Range& range = option.range;
  if (range.show != nullptr) return range.show(value);
  const bool by_words = range.kind == Kind::kWords;
  return std::visit(
      Overloaded{
          [&](bool* v) { return by_words ? std::string(word_of(range, *v ? 1 : 0)) : yes_or_no(*v); },
          [](std::optional<bool>* v) { return *v ? yes_or_no(**v) : std::string(); },
          [&](int64_t* v) { return *v == -1 && !range.word.empty() ? std::string(range.word) : fmt::format("{}", *v); },
          [](std::optional<double>* v) { return *v ? fmt::format("{}", **v) : std::string(); },
          [](std::filesystem::path* v) { return v->string(); },
          [](std::vector<int64_t>* v) { return fmt::format("{}", fmt::join(*v, ",")); },
          [](std::vector<std::string>* v) { return fmt::format("{}", fmt::join(*v, ",")); },
          [&](const WordRef& v) { return std::string(word_of(range, v.get(v.at))); }, [](std::string* v) { return *v; },
          [](int* v) { return fmt::format("{}", *v); }, [](float* v) { return fmt::format("{}", *v); },
          [](double* v) { return fmt::format("{}", *v); }, [](const auto&) { return std::string(); }},
      value);
}

std::string shown_default(const Option& option, CommandId command) {
  const Traits& traits = option.traits;
  const Range& range = option.range;
  if (option.is_switch() || option.place.in == nullptr) return "";
  Command of_command = made(command);
  const std::string value = shown_value(option, option.place.in(parts_of(of_command)));
  const bool is_open = value.empty() || value == "0";
  if (!traits.usual.empty() && (!traits.shown || is_open)) {
    if (traits.fill == nullptr || traits.usual != "{}") return std::string(traits.usual);
    return traits.fill(command);
  }
  const bool always = range.kind == Kind::kWords || range.kind == Kind::kList;
  return always || traits.shown || command == CommandId::kServe ? value : "";
}

std::string neither_yes_nor_no(const std::string& text) {
  return is_true(text) || is_one_of(text, {"false", "off", "no", "disable", "0"}) ? ""
                                                                                  : "want true or false, found " + text;
}
bool is_true(std::string text) { return is_one_of(std::move(text), {"true", "on", "yes", "enable", "1"}); }

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string suggestion(std::string_view found, const std::vector<std::string>& names) {
  const std::string* best = nullptr;
  size_t best_edits = found.size() / 4 + 1;
  for (const std::string& name : names) {
    const size_t edits = found.size() > 4 && name.starts_with(found) ? 1 : edits_between(found, name);
    if (edits > best_edits || (best != nullptr && edits == best_edits)) continue;
    best = &name;
    best_edits = edits;
  }
  return best == nullptr ? "" : fmt::format("; did you mean {}?", *best);
}

bool is_of_run(const Option& option) {
  return std::ranges::any_of(option.place.fields, [](const Field& field) {
    return field.part == detail::kPart<backend::RunConfig> || field.part == detail::kPart<backend::Ranks>;
  });
}

std::vector<RunSetting> run_settings(const backend::RunConfig& config) {
  ServeOptions with, without;
  with.model.run = config;
  const Parts parts = parts_of(with), open = parts_of(without);
  std::vector<RunSetting> settings;
  for (const Option& option : option_table()) {
    if (!is_of_run(option) || !option.commands.has(CommandId::kServe)) continue;
    RunSetting setting{&option, option.name(), shown_value(option, option.place.in(parts))};
    setting.given = setting.value != shown_value(option, option.place.in(open));
    setting.on = option.traits.on_value != nullptr ? option.traits.on_value(config) : option.traits.on;
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::string leave_out_card_settings(backend::RunConfig& config) {
  ServeOptions with, without;
  with.model.run = config;
  const Parts parts = parts_of(with), open = parts_of(without);
  std::vector<std::string> flags;
  for (const RunSetting& setting : run_settings(config)) {
    const Option& option = *setting.option;
    const bool is_of_cards = !option.traits.on.meets({BackendKind::kCpu, BackendKind::kReference});
    if (!setting.given || !is_of_cards || config.backend == BackendKind::kCuda) continue;
    flags.push_back(option.is_switch() ? setting.flag : fmt::format("{} {}", setting.flag, setting.value));
    const ValueRef slot = option.place.in(parts);
    if (auto* const* const optional = std::get_if<std::optional<double>*>(&slot))
      (*optional)->reset();
    else
      read_value(option, slot, shown_value(option, option.place.in(open)));
  }
  config = with.model.run;
  if (flags.empty()) return "";
  return fmt::format("{} {} no difference: no card is used", fmt::join(flags, ", "),
                     flags.size() > 1 ? "make" : "makes");
}

std::optional<RunSetting> first_misfit(const backend::RunConfig& config, backend::BackendSet backends) {
  for (const RunSetting& setting : run_settings(config))
    if (setting.given && !setting.on.meets(backends)) return setting;
  return std::nullopt;
}

void check_backends(const backend::RunConfig& config, backend::BackendSet backends, std::string_view why) {
  if (in_mx_blocks(config.dense_activations) && !config.dense.any())
    throw Error(Code::kUnsupported,
                "--dense-activation {}: want --mxfp4-layers or --mxfp8-layers, whose inputs it rounds, found neither",
                name_of(config.dense_activations));
  if (config.fp8_attention() && config.kv_type() != backend::KvDtype::kE4m3)
    throw Error(Code::kUnsupported, "--attention-activation fp8: want --kv-cache-dtype fp8, found {}",
                type_of(config.kv_type()).word);
  const std::optional<RunSetting> wrong = first_misfit(config, backends);
  if (!wrong) return;
  if (wrong->on.empty()) throw Error(Code::kUnsupported, "{}: no backend has kernels for it", wrong->asked());
  std::string names;
  for (const BackendKind kind : backend::kBackends)
    if (wrong->on.has(kind)) names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(kind));
  throw Error(Code::kUnsupported, "{}: want --backend {}, found {}", wrong->asked(), names,
              why.empty() ? name_of(config.backend) : why);
}

using engine::DraftMethod;

void require_speculation(const ModelOptions& options) {
  const bool head = options.speculation.method == DraftMethod::kEagle3,
             draft = options.speculation.method == DraftMethod::kDraft;
  if (head && options.speculative_model.empty())
    throw Error(Code::kInvalidRequest,
                "--speculative eagle3: want --speculative-model DIR, the directory of a head, found none");
  if (head && options.group.count > 1 && options.run.backend == BackendKind::kCuda)
    throw Error(Code::kUnsupported,
                "--speculative eagle3: want one process where cards compute, found --nnodes {}: their steps leave "
                "nothing for a head to read",
                options.group.count);
  if (draft && options.speculative_model.empty())
    throw Error(
        Code::kInvalidRequest,
        "--speculative draft: want --speculative-model MODEL, a smaller model of the same vocabulary, found none");
  if (draft && options.group.count > 1)
    throw Error(Code::kUnsupported, "--speculative draft: want one process, found --nnodes {}", options.group.count);
  if (draft && options.run.backend == BackendKind::kCuda && options.run.ranks.count > 1)
    throw Error(Code::kUnsupported, "--speculative draft: want one card, found --tensor-parallel-size {}",
                options.run.ranks.count);
  if (!head && !draft && !options.speculative_model.empty())
    throw Error(Code::kInvalidRequest, "--speculative-model: want --speculative eagle3 or draft, found {}",
                engine::name_of(options.speculation.method));
  if (!options.speculation.adaptive && options.speculation.method == DraftMethod::kOff)
    throw Error(Code::kInvalidRequest, "--speculative-control off: want --speculative with a method, found off");
  if (!head && options.tap_reading != model::eagle3::TapReading::kAuto)
    throw Error(Code::kInvalidRequest, "--speculative-tap-reading: want --speculative eagle3, found {}",
                engine::name_of(options.speculation.method));
}

ModelOptions draft_options(const ModelOptions& options) {
  ModelOptions draft = options;
  draft.settings = {};
  draft.model = options.speculative_model.string();
  draft.name.clear();
  draft.revision.clear();
  if (draft.load_format != LoadFormat::kDummy) draft.load_format = LoadFormat::kAuto;
  draft.run.dense = draft.run.dense.of_any_file();
  draft.backend_why.clear();
  draft.fast_why.clear();
  draft.offload_why.clear();
  draft.left_out.clear();
  draft.run.cpu_moe_layers = 0;
  draft.speculation = {};
  draft.speculative_model.clear();
  return draft;
}

std::string describe_speculation(const engine::SpeculationLimits& limits) {
  if (limits.method == engine::DraftMethod::kOff) return "no speculation";
  return fmt::format("speculation {}, {} {} tokens", engine::name_of(limits.method),
                     limits.adaptive ? "up to" : "always", limits.most_tokens);
}

}  // namespace nibble::app
