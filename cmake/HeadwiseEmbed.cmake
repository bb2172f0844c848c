# headwise_embed(TARGET OUTPUT a.js b.css): files of this folder as a source of the target, which defines what
# src/server/page_files.h declares. They are read when they change; nothing but CMake is needed.
function(headwise_embed target output)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${output})
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${source}" "-DFILES=${files}" -P ${script}
    DEPENDS ${files} ${script}
    COMMENT "Embedding ${output}"
    VERBATIM)
  # The target is another folder's: it needs to be told of what is made here.
  add_custom_target(${target}_embedded DEPENDS ${source})
  target_sources(${target} PRIVATE ${source})
  add_dependencies(${target} ${target}_embedded)
endfunction()
