// Nibble's, in place of the published header, whose formats are left out and which clang does not take with g++ 12's library.
#ifndef XGRAMMAR_STRUCTURAL_TAG_H_
#define XGRAMMAR_STRUCTURAL_TAG_H_

#include <xgrammar/exception.h>
#include <xgrammar/grammar.h>
#include <xgrammar/tokenizer_info.h>

#include <optional>
#include <string>

#include "support/utils.h"

namespace xgrammar {

Result<Grammar, StructuralTagError> StructuralTagToGrammar(
    const std::string& structural_tag_json,
    const std::optional<TokenizerInfo>& tokenizer_info = std::nullopt
);

}  // namespace xgrammar

#endif  // XGRAMMAR_STRUCTURAL_TAG_H_
