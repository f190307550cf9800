#include "app/setup/named_model.h"

#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "base/error.h"
#include "hub/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

namespace nibble::app {
namespace {

using Clock = std::chrono::steady_clock;

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// The speed over the last seconds.
class Rate {
 public:
  double of(int64_t bytes) {
    const auto now = Clock::now();
    seen_.emplace_back(now, bytes);
    while (seen_.size() > 2 && now - seen_.front().first > std::chrono::seconds(10)) seen_.pop_front();
    const double seconds = std::chrono::duration<double>(now - seen_.front().first).count();
    return seconds < 0.2 ? 0 : static_cast<double>(bytes - seen_.front().second) / seconds;
  }

 private:
  std::deque<std::pair<Clock::time_point, int64_t>> seen_;
};

hub::PullWatch watch_of(Terminal& terminal, const Interrupt& interrupt, Rate& rate) {
  const auto show = [&terminal, &rate](const hub::PullProgress& p) {
    const double share = static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1));
    if (p.checking) return terminal.progress("checking", share, "");
    const double speed = rate.of(p.done_bytes);
    std::string detail = fmt::format("{} of {}", size_text(p.done_bytes), size_text(p.total_bytes));
    if (speed > 0)
      detail += fmt::format(", {}/s, {} left", format_bytes(speed),
                            duration_text(static_cast<double>(p.total_bytes - p.done_bytes) / speed));
    terminal.progress("pulling", share, detail);
  };
  return {.progress = show,
          .note = [&terminal](const std::string& note) { terminal.note(note); },
          .stop = [&interrupt] { return interrupt.requested(); }};
}

}  // namespace

std::optional<hub::PullPlan> pull_model(const hub::PullRequest& request, const hub::Settings& settings,
                                        const PullView& view) {
  Terminal& terminal = view.terminal;
  Rate rate;
  const auto plan = [&] {
    const Interrupt interrupt(kEndings);
    terminal.progress("asking " + settings.endpoint, 0, "");
    hub::PullPlan found = hub::plan_pull(request, settings, watch_of(terminal, interrupt, rate));
    interrupt.throw_if_requested();
    terminal.end_progress();
    return found;
  }();
  const std::string missing = plan.missing_bytes == plan.bytes
                                  ? size_text(plan.bytes)
                                  : fmt::format("{} of {}", size_text(plan.missing_bytes), size_text(plan.bytes));
  const std::string what = fmt::format("{} from {} to {}", missing, settings.endpoint, settings.cache.string());
  if (view.ask && !terminal.ask(fmt::format("{} is not on this machine. Pull it, {}?", request.repo, what)))
    return std::nullopt;
  if (plan.missing_bytes > 0) terminal.note(fmt::format("pulling {}: {}", request.repo, what));
  const auto start = Clock::now();
  const Interrupt interrupt(kEndings);
  const bool done = hub::pull(plan, settings, watch_of(terminal, interrupt, rate));
  terminal.end_progress();
  if (!done) {
    terminal.note(fmt::format("stopped; nibble pull {} goes on from here", request.repo));
    throw Interrupted();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  terminal.note(plan.missing_bytes > 0
                    ? fmt::format("{}: {} in {}, checked: {}", request.repo, size_text(plan.missing_bytes),
                                  duration_text(seconds), plan.path.string())
                    : fmt::format("{} is here: {}", request.repo, plan.path.string()));
  return plan;
}

int execute(const PullOptions& options) {
  Terminal terminal(options.output);
  const std::vector<std::string> repos = hub::repos_of(options.model);
  if (repos.empty()) {
    throw Error(Code::kInvalidRequest, "want a model of the Hub, ORG/NAME such as openai/gpt-oss-20b; found {}",
                options.model);
  }
  const auto plan = pull_model({.repo = repos.front(), .revision = options.revision, .include = options.include},
                               options.hub, {terminal});
  check(plan.has_value(), "nobody was asked");
  if (!options.output.json) return kExitOk;
  nlohmann::ordered_json json = {{"model", plan->listing.repo},
                                 {"revision", plan->listing.revision},
                                 {"commit", plan->listing.commit},
                                 {"path", plan->path.string()},
                                 {"bytes", plan->bytes},
                                 {"pulled_bytes", plan->missing_bytes},
                                 {"files", nlohmann::json::array()}};
  for (const hub::RepoFile& file : plan->listing.files) json["files"].push_back(file.path);
  terminal.print_json(json);
  return kExitOk;
}

}  // namespace nibble::app
