#include "client/cli/verb.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace kvstow::cli {

const Flag& Flag::Required() const { return option_->required(), *this; }
const Flag& Flag::ShowDefault() const { return option_->capture_default_str(), *this; }
const Flag& Flag::Within(int low, int high) const {
  return option_->check(CLI::Range(low, high)), *this;
}
const Flag& Flag::Within(uint32_t low, uint32_t high) const {
  return option_->check(CLI::Range(low, high)), *this;
}
const Flag& Flag::Within(uint64_t low, uint64_t high) const {
  return option_->check(CLI::Range(low, high)), *this;
}
const Flag& Flag::Within(double low, double high) const {
  return option_->check(CLI::Range(low, high)), *this;
}
const Flag& Flag::NonNegative() const { return option_->check(CLI::NonNegativeNumber), *this; }
const Flag& Flag::OneOf(const std::vector<std::string>& words) const {
  return option_->check(CLI::IsMember(words)), *this;
}
const Flag& Flag::Check(std::function<std::string(const std::string&)> wrong) const {
  return option_->check(wrong), *this;
}
const Flag& Flag::Needs(const Flag& other) const { return option_->needs(other.option_), *this; }
const Flag& Flag::Excludes(const Flag& other) const {
  return option_->excludes(other.option_), *this;
}
const Flag& Flag::TypeName(const std::string& name) const {
  return option_->type_name(name), *this;
}
const Flag& Flag::FromEnvironment(const std::string& variable) const {
  return option_->envname(variable), *this;
}
const Flag& Flag::Repeats() const { return option_->take_all(), *this; }
const Flag& Flag::OneValueEach() const { return option_->allow_extra_args(false), *this; }
const Flag& Flag::SplitAt(char separator) const { return option_->delimiter(separator), *this; }
bool Flag::given() const { return option_->count() > 0; }

Verb Verb::Add(const std::string& name, const std::string& help) const {
  return {*app_->add_subcommand(name, help), *exit_code_};
}
void Verb::NeedsVerb() const { app_->require_subcommand(1); }

Flag Verb::Option(const std::string& name, std::string& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, int& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, uint32_t& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, uint64_t& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, double& value, const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, std::optional<double>& value,
                  const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, std::vector<std::string>& value,
                  const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Option(const std::string& name, std::vector<uint32_t>& value,
                  const std::string& help) const {
  return Flag(app_->add_option(name, value, help));
}
Flag Verb::Switch(const std::string& name, bool& value, const std::string& help) const {
  return Flag(app_->add_flag(name, value, help));
}
Flag Verb::Parse(const std::string& name, std::function<void(const std::string&)> take,
                 const std::string& help) const {
  return Flag(app_->add_option_function<std::string>(name, take, help));
}
Flag Verb::Each(const std::string& name, std::function<void(const std::string&)> take,
                const std::string& help) const {
  const auto take_all = [take = std::move(take)](const std::vector<std::string>& values) {
    for (const std::string& value : values) take(value);
  };
  return Flag(app_->add_option_function<std::vector<std::string>>(name, take_all, help));
}

void Verb::Footer(const std::string& text) const { app_->footer(text); }
void Verb::Run(std::function<int()> run) const {
  app_->callback([app = app_, exit_code = exit_code_, run = std::move(run)] {
    if (app->get_subcommands().empty()) *exit_code = run();
  });
}

void Refuse(const std::string& message) { throw CLI::ValidationError(message); }
void RefuseAbsent(const std::string& flag) { throw CLI::RequiredError(flag); }

}  // namespace kvstow::cli
