#include "tasks/task.h"

#include <fmt/format.h>

#include "tasks/needle.h"

namespace kveval {

std::span<const Task> all_tasks() {
  static const std::vector<Task> kTasks = {niah_task()};
  return kTasks;
}

const Task& task_named(std::string_view name) {
  std::string known;
  for (const Task& task : all_tasks()) {
    if (task.name == name) return task;
    known += (known.empty() ? "" : ", ") + task.name;
  }
  throw Error(ErrorKind::usage, fmt::format("there is no task named '{}'", name),
              fmt::format("Tasks: {}.", known));
}

}  // namespace kveval
