#pragma once
// The flags of a command line as the commands declare them. flags.cpp alone knows the library that reads them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
class Option;
}  // namespace CLI

namespace nibble::app {

// Ends the parse: "<flag>: <why>".
[[noreturn]] void refuse_value(const std::string& flag, const std::string& why);

// "; did you mean …?", or nothing where no name is near.
[[nodiscard]] std::string suggestion(std::string_view found, const std::vector<std::string>& names);

// Says what is wrong with a value; empty if nothing is.
using Check = std::function<std::string(const std::string& found)>;

// What --help shows at once, and what it shows when asked for (--help=sampling).
enum class HelpGroup { kCommon, kSampling, kPerformance, kExpert };
[[nodiscard]] std::string_view name_of(HelpGroup group);
[[nodiscard]] std::optional<HelpGroup> group_named(std::string_view name);

// A flag as help, the manual page and completions show it.
struct FlagFacts {
  std::vector<std::string> names;  // with their dashes, the short one first; a position has one without
  std::string value;               // TEXT, INT, a|b|c; empty: a switch
  std::string usual, help;
  HelpGroup group;
};
struct CommandFacts {
  std::string name, about;
  std::vector<FlagFacts> flags;  // without those that are hidden
};

// One declared flag. A handle: it lives as long as its CommandLine.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  // A whole number of a range, in decimal: 010 is 10. `word`, where there is one, stands for -1.
  Flag whole(int64_t least, int64_t most, const std::string& word = "");
  Flag within(double least, double most);  // and finite
  Flag finite();
  Flag positive();  // and finite
  Flag not_empty();
  Flag check(const Check& wrong);
  Flag rewrite(const std::function<std::string(const std::string& found)>& rewritten);  // before any check

  Flag type(const std::string& shown);   // what --help calls the value
  Flag usual(const std::string& shown);  // what --help calls the default
  Flag hidden();                         // from --help
  Flag required();
  Flag last_counts();               // where it stands twice
  Flag one_value(bool one = true);  // per mention of a flag that repeats
  Flag excludes(Flag other);
  Flag needs(Flag other);

  [[nodiscard]] bool positional() const;   // and nothing else
  [[nodiscard]] std::string name() const;  // the first long one, with its dashes
  [[nodiscard]] bool given() const;
  [[nodiscard]] bool is_switch() const;                   // takes no value
  [[nodiscard]] std::vector<std::string> values() const;  // as they were understood
  [[nodiscard]] std::string usual() const;
  [[nodiscard]] std::string wrong_for_switch(const std::string& value) const;  // empty: nothing, or it is no switch
  // For a switch: the value that `name` with this value means; a --no-… turns true into false.
  [[nodiscard]] std::string switched(const std::string& name, const std::string& value) const;
  // As if it had been given. Throws Error(kInvalidRequest) that begins with `origin`.
  void set(const std::vector<std::string>& values, const std::string& origin);

 private:
  CLI::Option* option_;
};

// The flags of one command. Names are "-m,--model"; "!--no-x" turns a switch off; without dashes it is a position.
class Flags {
 public:
  explicit Flags(CLI::App* command) : command_(command) {}

  Flag value(const std::string& names, std::string& into, const std::string& help);
  Flag value(const std::string& names, std::filesystem::path& into, const std::string& help);
  Flag value(const std::string& names, int& into, const std::string& help);
  Flag value(const std::string& names, int64_t& into, const std::string& help);
  Flag value(const std::string& names, float& into, const std::string& help);
  Flag value(const std::string& names, double& into, const std::string& help);
  Flag value(const std::string& names, std::optional<double>& into, const std::string& help);
  Flag value(const std::string& names, std::vector<std::string>& into, const std::string& help);
  Flag value(const std::string& names, std::vector<int64_t>& into, const std::string& help);
  Flag take(const std::string& names, const std::function<void(const std::string& found)>& use,
            const std::string& help = "");
  Flag take_all(const std::string& names, const std::function<void(const std::vector<std::string>& found)>& use,
                const std::string& help = "");
  Flag turn(const std::string& names, bool& into, const std::string& help);
  Flag turn(const std::string& names, std::optional<bool>& into, const std::string& help);
  Flag mention(const std::string& names, const std::function<void()>& use, const std::string& help = "");

  // Where --help shows what is declared from here on; a command begins with kCommon.
  void group(HelpGroup group);
  // From here on --help shows a variable's value as its default, or no longer does.
  void show_defaults(bool show);
  // Called when the command line has been read.
  void then(const std::function<void()>& done);

  [[nodiscard]] std::vector<Flag> all() const;
  [[nodiscard]] std::optional<Flag> find(const std::string& name) const;
  [[nodiscard]] Flag get(const std::string& name) const;  // REQUIRES: declared

 private:
  CLI::App* command_;
};

class CommandLine {
 public:
  explicit CommandLine(const std::string& version);
  ~CommandLine();

  Flags command(const std::string& name, const std::string& what);
  [[nodiscard]] std::optional<Flags> find(const std::string& command) const;
  [[nodiscard]] std::vector<CommandFacts> facts() const;
  struct Parsed {
    std::string command;  // empty: none was named, and help or the version is wanted
    bool wants_help = false, wants_version = false;
  };
  // Throws Error(kInvalidRequest).
  [[nodiscard]] Parsed parse(std::vector<std::string> arguments);

 private:
  // Refuses --switch=maybe, and a flag where serve wants a value. Makes two words of --flag=, whose value is empty: the
  // library would take the next word.
  void check_equals(std::vector<std::string>& arguments) const;

  std::unique_ptr<CLI::App> app_;
};

}  // namespace nibble::app
