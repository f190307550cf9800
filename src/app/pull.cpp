#include "app/commands.h"
#include "app/pull_model.h"
#include "base/error.h"
#include "hub/cache.h"

namespace nibble::app {

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
