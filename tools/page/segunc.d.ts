/** The one global of the page: each script adds its part (segunc/gallery/assets/core.js). */
declare var segunc: any;
