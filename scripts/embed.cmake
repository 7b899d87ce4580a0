# embed_files(OUT file...): each file becomes a C++ source that defines its bytes as
#   extern const std::string_view kveval::embedded::<name with every non-alphanumeric as _>
# declared in embedded.h (in the build folder's generated/), so that the program is one file.
set(KVEVAL_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed-one.cmake)
function(embed_files out)
  set(sources)
  set(declarations "#pragma once\n#include <string_view>\nnamespace kveval::embedded {\n")
  foreach(file ${ARGN})
    string(REGEX REPLACE "[^A-Za-z0-9]" "_" name ${file})
    set(source ${CMAKE_BINARY_DIR}/generated/${name}.cpp)
    add_custom_command(
      OUTPUT ${source} DEPENDS ${CMAKE_SOURCE_DIR}/${file} ${KVEVAL_EMBED_SCRIPT}
      COMMAND ${CMAKE_COMMAND} -DINPUT=${CMAKE_SOURCE_DIR}/${file} -DOUTPUT=${source} -DNAME=${name}
              -P ${KVEVAL_EMBED_SCRIPT})
    list(APPEND sources ${source})
    string(APPEND declarations "extern const std::string_view ${name};  // ${file}\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/embedded.h CONTENT "${declarations}}  // namespace kveval::embedded\n")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
