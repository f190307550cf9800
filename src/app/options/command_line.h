#pragma once
// Reads the words of a command into its options, by the rows of the table.

#include "app/options/foreign.h"
#include "app/options/option.h"

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// An option of a command, or another program's that is taken in its place, and what it was given.
struct Argument {
  const Option* option = nullptr;
  const ForeignWord* foreign = nullptr;         // instead
  std::string name;                             // with its dashes; of a place its name
  std::vector<std::string> names, negations{};  // a negation turns a switch off
  bool is_switch = false;
  Range::Takes takes = Range::Takes::kOne;
  std::vector<std::string> words{}, values{};  // as they were typed; as they were understood

  [[nodiscard]] bool given() const { return !values.empty(); }
  [[nodiscard]] bool is_place() const { return option != nullptr && option->is_place(); }
  [[nodiscard]] bool has_name(std::string_view of) const;
  // The value that a switch of this name with this value means; a negation turns true into false.
  [[nodiscard]] std::string switched(std::string_view of, const std::string& value) const;
};

// All arguments of a command, whose options they fill. The options outlive them.
class Arguments {
 public:
  Arguments(CommandId command, const Parts& parts);

  // Throws Error(kInvalidRequest) that begins with the command's name. Returns false where help is wanted instead.
  [[nodiscard]] bool read(std::span<const std::string> words, std::vector<std::string> unknown);
  // As if it had been given. Throws Error(kInvalidRequest) that begins with `origin`.
  void set(Argument& argument, const std::vector<std::string>& values, std::string_view origin);

  [[nodiscard]] CommandId command() const { return command_; }
  [[nodiscard]] std::deque<Argument>& all() { return all_; }
  [[nodiscard]] const std::deque<Argument>& all() const { return all_; }
  [[nodiscard]] Argument* find(std::string_view name);  // null: there is none
  [[nodiscard]] const Argument* find(std::string_view name) const { return const_cast<Arguments*>(this)->find(name); }
  [[nodiscard]] bool given(std::string_view name) const;

 private:
  class Words;
  void take(Argument& argument, const std::vector<std::string>& values);
  void take_place(const Argument& argument, const std::string& found);
  void check_together() const;
  void refuse_unknown(const std::vector<std::string>& unknown, const std::vector<std::string>& refused) const;

  const CommandId command_;
  const Parts parts_;
  std::deque<Argument> all_;
};

// Which command the words are of.
struct CommandWords {
  std::optional<CommandId> command;  // none: help or the version is wanted
  bool wants_help = false, wants_version = false;
  std::vector<std::string> unknown{};  // before it
  size_t first = 0;                    // word behind it
};
// Throws Error(kInvalidRequest) where there is none.
[[nodiscard]] CommandWords find_command(std::span<const std::string> words);

}  // namespace nibble::app
