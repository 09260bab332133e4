/* What ESLint checks of the review page's scripts. They are plain scripts, not modules: each adds
   its part to one global object (segunc/gallery/assets/core.js). */
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["segunc/gallery/assets/*.js"],
    languageOptions: {
      ecmaVersion: 2022,
      sourceType: "script",
      globals: { ...globals.browser, segunc: "writable" },
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      complexity: ["error", 12],
      "consistent-return": "error",
      curly: ["error", "multi-line"],
      eqeqeq: "error",
      "max-lines-per-function": [
        "error",
        { max: 60, skipBlankLines: true, skipComments: true, IIFEs: false },
      ],
      "max-nested-callbacks": ["error", 4],
      "no-implicit-globals": "error",
      "no-nested-ternary": "error",
      "no-shadow": "error",
      "no-unused-vars": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
