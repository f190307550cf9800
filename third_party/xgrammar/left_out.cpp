// Nibble's: what the vendored part of xgrammar needs in place of the files left out (README.md).
#include "json_schema_converter.h"
#include "lark_converter.h"
#include "regex_converter.h"
#include "structural_tag.h"
#include "support/logging.h"
#include "support/recursion_guard.h"

namespace xgrammar {

void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

std::atomic<int> RecursionGuard::max_recursion_depth_{RecursionGuard::kDefaultMaxRecursionDepth};

Grammar JSONSchemaToGrammar(const std::string&, bool, std::optional<int>,
                            std::optional<std::pair<std::string, std::string>>, bool, std::optional<int>, bool,
                            JSONFormat, std::vector<std::string>) {
  XGRAMMAR_LOG(FATAL) << "left out: JSON Schema";
}
Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&, const std::vector<NamedGrammar>&) {
  XGRAMMAR_LOG(FATAL) << "left out: Lark";
}
std::string RegexToEBNF(const std::string&, bool) { XGRAMMAR_LOG(FATAL) << "left out: regular expressions"; }
Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&, const std::optional<TokenizerInfo>&) {
  XGRAMMAR_LOG(FATAL) << "left out: structural tags";
}

}  // namespace xgrammar
