# Writes OUTPUT, a header with the version and the state of the checkout in SOURCE. Runs at every build; the file
# changes, and one source is compiled again, only when what it says changes. Outside a checkout the sha is empty.
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
                OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
set(dirty false)
if(failed)
  set(sha "")
else()
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
                  OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty true)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once
namespace kveval::build {
inline constexpr const char* kVersion = \"${VERSION}\";
inline constexpr const char* kGitSha = \"${sha}\";
inline constexpr bool kGitDirty = ${dirty};
}  // namespace kveval::build
")
