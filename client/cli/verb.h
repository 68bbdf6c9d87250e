// The verbs of `kvstow` and their flags: a thin front of CLI11.
//
// Only verb.cc includes CLI11, whose header takes longer to compile than most verbs. Verb and Flag
// are handles: they are cheap to copy, and the command line that they belong to outlives them.
//
//   void AddPing(const Verb& parent) {
//     const Verb verb = parent.Add("ping", "Whether a server answers");
//     const auto flags = std::make_shared<Flags>();
//     verb.Option("--times", flags->times, "how often").Within(1u, 1000u).ShowDefault();
//     verb.Footer("Examples:\n  kvstow ping");
//     verb.Run([flags] { return Ping(*flags); });
//   }
#ifndef KVSTOW_CLIENT_CLI_VERB_H_
#define KVSTOW_CLIENT_CLI_VERB_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvstow::cli {

// Exit codes. They are a contract: scripts build on them.
inline constexpr int kDone = 0, kFailed = 1, kWrongUse = 2, kMiss = 3;

// A flag or a positional argument. Each method returns the flag, so that calls can be chained.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  const Flag& Required() const;
  // Shows the present value in the help.
  const Flag& ShowDefault() const;
  // Refuses numbers outside [low, high].
  const Flag& Within(int low, int high) const;
  const Flag& Within(uint32_t low, uint32_t high) const;
  const Flag& Within(uint64_t low, uint64_t high) const;
  const Flag& Within(double low, double high) const;
  const Flag& NonNegative() const;
  // Refuses all other words.
  const Flag& OneOf(const std::vector<std::string>& words) const;
  // `wrong` returns what is wrong with a value, or "".
  const Flag& Check(std::function<std::string(const std::string&)> wrong) const;
  const Flag& Needs(const Flag& other) const;
  const Flag& Excludes(const Flag& other) const;
  // Sets the name of the value in the help.
  const Flag& TypeName(const std::string& name) const;
  // Reads the environment variable where the flag is absent.
  const Flag& FromEnvironment(const std::string& variable) const;
  // The flag may be repeated; every use counts.
  const Flag& Repeats() const;
  // The flag may be repeated, with one value a time.
  const Flag& OneValueEach() const;
  // Splits a value into several.
  const Flag& SplitAt(char separator) const;
  bool given() const;

 private:
  CLI::Option* option_;
};

class Verb {
 public:
  // `exit_code` receives what Run's function returns.
  Verb(CLI::App& app, int& exit_code) : app_(&app), exit_code_(&exit_code) {}

  // Adds a verb below this one.
  Verb Add(const std::string& name, const std::string& help) const;
  // Refuses a command line without a verb below this one.
  void NeedsVerb() const;

  // `value` outlives the command line. Names without dashes are positional.
  Flag Option(const std::string& name, std::string& value, const std::string& help) const;
  Flag Option(const std::string& name, int& value, const std::string& help) const;
  Flag Option(const std::string& name, uint32_t& value, const std::string& help) const;
  Flag Option(const std::string& name, uint64_t& value, const std::string& help) const;
  Flag Option(const std::string& name, double& value, const std::string& help) const;
  Flag Option(const std::string& name, std::optional<double>& value, const std::string& help) const;
  Flag Option(const std::string& name, std::vector<std::string>& value,
              const std::string& help) const;
  Flag Option(const std::string& name, std::vector<uint32_t>& value, const std::string& help) const;
  Flag Switch(const std::string& name, bool& value, const std::string& help) const;
  // `take` gets the value, or every value of a flag that repeats. It may call Refuse.
  Flag Parse(const std::string& name, std::function<void(const std::string&)> take,
             const std::string& help) const;
  Flag Each(const std::string& name, std::function<void(const std::string&)> take,
            const std::string& help) const;

  // Sets the text below the help: examples.
  void Footer(const std::string& text) const;
  // `run` is called when the command line names this verb and none below it.
  void Run(std::function<int()> run) const;

 private:
  CLI::App* app_;
  int* exit_code_;
};

// Ends the reading of the command line as wrong use, with this message.
[[noreturn]] void Refuse(const std::string& message);
// The same: a flag that must be given is absent.
[[noreturn]] void RefuseAbsent(const std::string& flag);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_VERB_H_
